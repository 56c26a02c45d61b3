"""An answer that is one of several, said token by token."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """The allowed answers as tokens. No answer may be empty, and no two may be equal.

    An answer that another one begins with ("push", "push hard") has to end with a token of its own,
    as an end-of-sequence token is.
    """

    answers: tuple[tuple[int, ...], ...]

    def next(self, said: Sequence[int]) -> tuple[int, ...]:
        """The tokens that may follow `said`, ascending; none where an answer is complete."""
        spot = len(said)
        return tuple(sorted({tokens[spot] for tokens in self._left(said) if len(tokens) > spot}))

    def decided(self, said: Sequence[int]) -> int | None:
        """The only answer that begins with `said`, as its index; None where several do."""
        left = self._left(said)
        return self.answers.index(left[0]) if len(left) == 1 else None

    @property
    def by_first_token(self) -> bool:
        """Whether the first token tells all answers apart."""
        return len({tokens[0] for tokens in self.answers}) == len(self.answers)

    def _left(self, said: Sequence[int]) -> list[tuple[int, ...]]:
        prefix = tuple(said)
        return [tokens for tokens in self.answers if tokens[: len(prefix)] == prefix]
