"""Text as the embedded model reads it: whole words of a small, closed vocabulary."""

import re
from collections.abc import Iterable, Sequence

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")

PAD, UNKNOWN, ANSWER, TASK = "<pad>", "<unknown>", "<answer>", "<task>"
SPECIAL = (PAD, UNKNOWN, ANSWER, TASK)


def words_of(text: str) -> list[str]:
    """The words of `text` in lower case; digits and punctuation say nothing to this model."""
    return _WORD.findall(text.lower())


def vocabulary_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The special words, then every word of `texts` in alphabetical order."""
    return (*SPECIAL, *sorted({word for text in texts for word in words_of(text)}))


class Vocabulary:
    """Words and their numbers."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._number = {word: number for number, word in enumerate(words)}

    def __contains__(self, word: str) -> bool:
        return word in self._number

    def __len__(self) -> int:
        return len(self.words)

    def number(self, word: str) -> int:
        return self._number.get(word, self._number[UNKNOWN])

    def encode(self, prompt: str, instruction: str) -> list[int]:
        """The slot that becomes the answer, the prompt, then the robot's task."""
        text = [ANSWER, *words_of(prompt), TASK, *words_of(instruction)]
        return [self.number(word) for word in text]
