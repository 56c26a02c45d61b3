"""What other threads tell a robot's control thread."""

from dataclasses import dataclass

from kairos_ros.core.exchange import Answer
from kairos_ros.core.execution.task import Task
from kairos_ros.core.pipeline import Component
from kairos_ros.core.server_status import ServerStatus
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.guard import GuardLimits
from kairos_ros.robot.supervision.state_events import CellVerdict, Progress, Release, ResetDone


@dataclass(frozen=True, slots=True)
class Start:
    """Reset the body for this goal and do this task. Only while no task is running. A supervised
    robot that was warned begins when its cell is not known to be unsafe any more."""

    task: Task
    goal: TaskGoal


@dataclass(frozen=True, slots=True)
class Arrived:
    """An answer, with the monotonic time of its arrival."""

    answer: Answer
    now_ns: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message from the server that is not even an answer."""


@dataclass(frozen=True, slots=True)
class ServerFound:
    """Somebody new listens to requests."""


@dataclass(frozen=True, slots=True)
class ServerHeard:
    """A serving node said how it is, at this monotonic time."""

    status: ServerStatus
    now_ns: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End this task, if it is the running one."""

    task: str


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    """Other limits of the guard, which fit the robot."""

    limits: GuardLimits


@dataclass(frozen=True, slots=True)
class StopControl:
    """Leave the arm holding and end the thread."""


@dataclass(frozen=True, slots=True)
class Planned:
    """System 2's answer, with the number of its question and the monotonic time of its arrival."""

    number: int
    instruction: str
    now_ns: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A judge or planner cannot take the task in these words, with the monotonic time of its
    arrival."""

    component: Component
    task: str
    instruction: str
    reason: str
    now_ns: int


Judgement = CellVerdict | Progress | Release | Planned | Refused
"""For a supervised robot only; counted as dropped by one that is not."""
Event = (
    Start
    | Arrived
    | Malformed
    | ServerFound
    | ServerHeard
    | Cancel
    | LimitsChanged
    | StopControl
    | Judgement
    | ResetDone
)
