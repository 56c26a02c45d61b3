"""What the loop of a robot wants done."""

from dataclasses import dataclass

import numpy as np

from kairos_ros.core.exchange import (
    Request,
)
from kairos_ros.core.execution.task import TaskResult


@dataclass(frozen=True, slots=True)
class Observe:
    """Observe, and keep the observation."""

    earlier: int
    """Of the observations before, the newest so many stay; the others are of no use any more."""
    instead: bool = False
    """Of the newest one before: that goes, too, first."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send this request, now."""

    request: Request
    observations: int = 1
    """1: with an observation taken now. Else with the last so many that were kept."""
    repeat: bool = True
    """The oldest, where there are fewer."""


@dataclass(frozen=True, slots=True)
class Act:
    """Execute this approved action in this control period."""

    action: np.ndarray


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold position for this control period."""


@dataclass(frozen=True, slots=True)
class Finished:
    result: TaskResult


Effect = Observe | Send | Act | Hold | Finished
