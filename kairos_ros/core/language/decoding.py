"""Which answers are decoded one token further in the next step, and what a step takes.

`all` decodes all of them. `slack` decodes the shorter ones alone while even the most urgent answer
can wait that long (Wang et al. §3.2, Algorithm 3).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

LENGTH_STEP = 64
"""Positions whose steps are taken to be as long."""
NEWEST = 0.2
"""Weight of the newest step in the mean of its entry."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """An answer that is being decoded."""

    key: Hashable
    length: int
    """Positions that its next token looks at: prefill, question, and what was said."""
    said: int
    """Tokens so far, at least 1."""
    most: int
    """Tokens that it may have, more than `said`."""
    first_s: float
    """When its first token was there."""
    until_s: float
    """When the whole answer has to be there."""

    def slack_s(self, now_s: float, step_s: float) -> float:
        """By how much its next token can wait, if a step of it alone takes `step_s`, and it is to
        have its last token in time with tokens at even intervals."""
        pace_s = (self.until_s - self.first_s) / self.most
        return pace_s * (self.said + 1) - (now_s - self.first_s) - step_s


class StepTimes:
    """What a step of so many answers takes of which the longest has so many positions.

    Learned from the steps that are computed. A larger step takes as long as any smaller one at
    least; one whose like was never seen is taken to be no longer than that, so that it is tried.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], float] = {}
        """Answers, length in LENGTH_STEP -> mean seconds."""

    def expected_s(self, answers: int, length: int) -> float:
        """0 where no step was seen that is as small."""
        longest = length // LENGTH_STEP
        return max(
            (s for (n, at), s in self._seen.items() if n <= answers and at <= longest), default=0.0
        )

    def saw(self, answers: int, length: int, took_s: float) -> None:
        """A step took so long. Smaller ones that are held to be slower than this one's mean are
        taken to be as fast."""
        entry = answers, length // LENGTH_STEP
        before = self._seen.get(entry, took_s)
        mean = self._seen[entry] = before + NEWEST * (took_s - before)
        for (n, at), seen_s in self._seen.items():
            if n <= entry[0] and at <= entry[1]:
                self._seen[n, at] = min(seen_s, mean)


Choose = Callable[[Sequence[Decoding], StepTimes, float], list[Hashable]]
"""Those that the next step decodes: of answers, of which there is one at least, at a time in
seconds. Never none of them."""


def decode_all(answers: Sequence[Decoding], _times: StepTimes, _now_s: float) -> list[Hashable]:
    """All of them: continuous batching."""
    return [one.key for one in answers]


def decode_by_slack(answers: Sequence[Decoding], times: StepTimes, now_s: float) -> list[Hashable]:
    """From the shortest on, as many as a step has room for that is over before the most urgent
    answer of all has to go on, and as long as one more does not make tokens per second fewer. All
    of them, where not even the shortest can go first."""
    slack_s = min(one.slack_s(now_s, times.expected_s(1, one.length)) for one in answers)
    packed: list[Hashable] = []
    took_s = 0.0
    for one in sorted(answers, key=lambda one: one.length):
        step_s = times.expected_s(len(packed) + 1, one.length)
        fits, pays = step_s <= slack_s, len(packed) * (step_s - took_s) <= took_s
        if not (fits and pays):
            break  # neither does a longer one
        packed.append(one.key)
        took_s = step_s
    return packed or decode_all(answers, times, now_s)


DEFAULT_CHOICE = "all"
CHOICES: Mapping[str, Choose] = {DEFAULT_CHOICE: decode_all, "slack": decode_by_slack}
