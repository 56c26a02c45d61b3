"""A round that is asked for before its time, because the arm does not move as its actions say.

The request is like any other, only earlier: the running chunk goes on until the new one has come,
for the usual lead at least, and to its end where no answer comes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Surprise:
    """How far an arm departs from its actions; see `core.horizons.surprise`."""

    score: float = 0.0
    joint: str = ""


CALM = Surprise()


@dataclass(slots=True)
class EarlyRequest:
    """Of one round."""

    surprise: Surprise
    """When it was decided."""
    until: int = 0
    """Actions executed in the task from which on its chunk takes over; set when it is sent."""
