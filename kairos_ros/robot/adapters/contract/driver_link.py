"""The interface between a contracted robot and what carries its messages: plain data both ways."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kairos_ros.robot.adapter import TaskGoal


@dataclass(frozen=True, slots=True)
class Positions:
    """What one driver told of its joints."""

    names: tuple[str, ...]
    values: np.ndarray
    """float64 [len(names)], rad or m."""
    at_ns: int
    """Monotonic time of its arrival; of repeated messages, of the first."""


@dataclass(frozen=True, slots=True)
class Entries:
    """What somebody told of entries of the state that no joint tells."""

    values: np.ndarray
    """float64 [n]."""
    at_ns: int


@dataclass(frozen=True, slots=True)
class Glance:
    """When a camera last showed something."""

    at_ns: int
    """Arrival of its newest picture; of repeated messages, of the first."""
    changed_ns: int
    """Arrival of the first picture with the pixels of the newest one."""


@dataclass(frozen=True, slots=True)
class Objection:
    """Why nothing must move."""

    reason: str
    """A few words it is counted by."""
    text: str
    passes: bool = False
    """It may be over soon: at the start of a task it is worth waiting."""


class DriverLink(Protocol):
    """Newest messages of a robot's drivers. Called from the control thread; no call blocks.

    Arms, extra entries and cameras are those of the contract that it was made for.
    """

    def positions(self, arm: int) -> Positions | None:
        """None until the driver has told something."""

    def entries(self, extra: int) -> Entries | None: ...

    def glance(self, key: str) -> Glance | None: ...

    def picture(self, key: str) -> bytes:
        """The newest picture as JPEG, in the contract's size. Raises BodyError for one that cannot
        be read."""

    def command(self, arm: int, positions: Mapping[str, float]) -> None:
        """Sends targets to the arm's controllers: joint -> rad or m."""

    def aim(self, arm: int, positions: Mapping[str, float]) -> None:
        """The same before the torque is on: only to controllers that are told by topics. Actions
        reject goals then."""

    def torque(self, on: bool) -> None:
        """Of every arm that can be told."""

    def lives(self, arm: int) -> object:
        """Equal as long as the same driver tells positions."""

    def begin(self) -> None:
        """A new task shall begin: what controllers rejected before does not count any more."""

    def objection(self) -> Objection | None: ...

    def announce(self, goal: TaskGoal) -> None:
        """A new task begins; what is said of the task before it does not count any more."""

    def prepared(self) -> bool:
        """Whether the cell has answered the newest announcement; True where there is none."""

    def done(self) -> bool | None:
        """Whether the cell says that the task is done; None where it does not say."""

    def close(self) -> None: ...
