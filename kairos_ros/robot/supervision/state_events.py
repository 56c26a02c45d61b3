"""What happens to a robot's state machine. Times are nanoseconds of the robot's monotonic clock."""

from dataclasses import dataclass

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component, TaskState


@dataclass(frozen=True, slots=True)
class TaskStarted:
    now_ns: int


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """Succeeded, failed, canceled or out of time; not for what `step` itself ended."""

    now_ns: int
    outcome: str


@dataclass(frozen=True, slots=True)
class Tick:
    now_ns: int


@dataclass(frozen=True, slots=True)
class ComponentAsked:
    """A request to System 1 or System 2 has left. A repetition does not extend its deadline."""

    now_ns: int
    component: Component


@dataclass(frozen=True, slots=True)
class ComponentAnswered:
    """Usable actions, or a plan, have come."""

    now_ns: int
    component: Component


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """What one safety service says of one frame."""

    now_ns: int
    frame_ns: int
    """When the judged frame was taken."""
    safe: bool
    source: str = ""
    """Which service; where several disagree, any "unsafe" wins."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the monitor says of one frame."""

    now_ns: int
    frame_ns: int
    state: TaskState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SafeStateReached:
    now_ns: int


@dataclass(frozen=True, slots=True)
class SafeStateMissed:
    """The body has no way there, or did not arrive in time."""

    now_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class ResetDone:
    now_ns: int


@dataclass(frozen=True, slots=True)
class ResetFailed:
    now_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """A human lets the robot work again. Raises ConfigError without a name or a reason."""

    now_ns: int
    name: str
    reason: str

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("reason", self.reason)):
            if not text.strip():
                raise ConfigError(f"a release needs a {what}, not {text!r}: it is recorded")


Event = (
    TaskStarted
    | TaskEnded
    | Tick
    | ComponentAsked
    | ComponentAnswered
    | CellVerdict
    | Progress
    | SafeStateReached
    | SafeStateMissed
    | ResetDone
    | ResetFailed
    | Release
)
