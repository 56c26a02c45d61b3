"""The judge that ships: a tiny vision-language model, in process, trained by `kairos train-judge`.

It sees images and text, nothing else. What it was trained on is a closed list in its folder; other
instructions and answers are refused rather than guessed.
"""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kairos_ros.vlm.embedded.one_thread import use_one_thread
from kairos_ros.vlm.embedded.planner import likest
from kairos_ros.vlm.embedded.tiny_vlm import Description, Floats, TinyVLM, softmax
from kairos_ros.vlm.embedded.words import Vocabulary, words_of
from kairos_ros.vlm.judge import Cost, Failure, FailureCode, Question, Verdict, complaint, unknown

MOST_UNKNOWN_WORDS = 0.5
"""A prompt with a larger share of words that the model never saw is refused."""


class EmbeddedJudge:
    """Judge over what `tiny_vlm.read_model` returns: `EmbeddedJudge(*read_model(folder))`.

    Each image is encoded once per call, however many questions are about it.
    """

    def __init__(self, description: Description, network: TinyVLM) -> None:
        use_one_thread()
        self.description, self._network = description, network
        self.model = f"embedded:{self.description.name}"
        self._vocabulary = Vocabulary(self.description.words)

    def judge(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        start = time.perf_counter()
        seen: dict[int, Floats] = {}
        outcomes: list[Verdict | Failure] = []
        for question in questions:
            if failure := self._refusal(question):
                code, message = failure
                outcomes.append(Failure(code, message, time.perf_counter() - start, self.model))
            else:
                outcomes.append(self._verdict(question, seen, start))
        return outcomes

    def close(self) -> None:
        """Nothing to free."""

    def _verdict(self, question: Question, seen: dict[int, Floats], start: float) -> Verdict:
        shape = self.description.shape
        (image,) = question.images
        if id(image) not in seen:  # alive as long as its question, so ids do not repeat
            seen[id(image)] = self._network.see(fitted(image, shape.image_px)[None])[0]
        words = self._vocabulary.encode(question.prompt, question.instruction)
        logits = self._network.answer(seen[id(image)], words)
        allowed = [self._vocabulary.number(answer) for answer in question.answers]
        odds = softmax(logits[allowed] / self.description.temperature)
        tokens = shape.grid**2 + len(words)
        return Verdict(
            question.answers[int(odds.argmax())],
            dict(zip(question.answers, odds.tolist(), strict=True)),
            time.perf_counter() - start,
            self.model,
            Cost(tokens, 1),
        )

    def _refusal(self, question: Question) -> tuple[FailureCode, str] | None:
        """Why the model must not be asked this, or None."""
        if wrong := complaint(question):
            return FailureCode.BAD_QUESTION, wrong
        shape = self.description.shape
        if len(question.images) > 1:
            return FailureCode.BAD_QUESTION, f"{len(question.images)} images, this model takes one"
        fitting = [a for a in self.description.asked if set(question.answers) <= set(a.answers)]
        if not fitting:
            known = " or ".join(str(a.answers) for a in self.description.asked)
            return (
                FailureCode.BAD_QUESTION,
                f"allowed answers are {question.answers}; this model answers with some of {known}",
            )
        words = words_of(question.prompt)
        strange = [word for word in words if word not in self._vocabulary]
        if len(strange) > MOST_UNKNOWN_WORDS * len(words) or not words:
            return (
                FailureCode.BAD_QUESTION,
                f"prompt {question.prompt!r:.200}: this model does not know the words"
                f" {', '.join(strange)}; word it as its card does",
            )
        if len(words) + len(words_of(question.instruction)) + 2 > shape.most_words:
            return FailureCode.BAD_QUESTION, f"the prompt is too long: {len(words)} words"
        if not any(question.instruction in a.instructions for a in fitting):
            told = list(dict.fromkeys(i for a in fitting for i in a.instructions))
            likeness, nearest = likest(told, question.instruction)
            meant = nearest if likeness > 0 else None
            return FailureCode.UNKNOWN_INSTRUCTION, unknown(question.instruction, told, meant)
        return None


def fitted(image: NDArray[np.uint8], size_px: int) -> NDArray[np.uint8]:
    """`image` uint8 [height, width, 3] as a square of `size_px`."""
    if image.shape[:2] == (size_px, size_px):
        return image
    from PIL import Image

    square = Image.fromarray(image).resize((size_px, size_px), Image.Resampling.BILINEAR)
    return np.asarray(square)
