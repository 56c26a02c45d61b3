"""What `kairos replay` and its processes of virtual robots tell each other, pickled over a pipe."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kairos_ros.evaluation.replay.rules import Rules
from kairos_ros.evaluation.replay.virtual_robot import Ended
from kairos_ros.evaluation.trace import Trace
from kairos_ros.robot.adapter import RobotSpec

Images = Mapping[str, bytes]
"""Camera key -> JPEG bytes."""


@dataclass(frozen=True, slots=True)
class Role:
    """A recorded task, as a virtual robot needs it: without chunks."""

    trace: Trace
    horizon: str = ""
    """Horizon policy of its requests; empty: the recorded lengths, or what the rules say."""
    images: tuple[Images, ...] = ()
    """Of every round; empty where the policy reads none."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The robots of one process and everything they may be asked to do. Sent first."""

    robots: tuple[str, ...]
    rules: Rules
    spec: RobotSpec
    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """The run begins: records count from here, in ns of the machine's monotonic clock."""

    epoch_ns: int


@dataclass(frozen=True, slots=True)
class Give:
    """A task for a robot that is free."""

    robot: str
    role: int
    """Index into `Crew.roles`."""
    number: int
    wanted_s: float
    at_ns: int
    """When it begins; monotonic."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End all running tasks."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Say goodbye, send a `Tally` and end."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The serving node has opened the topics of all robots of this process."""


@dataclass(frozen=True, slots=True)
class Done:
    """A robot is free again."""

    robot: str
    ended: Ended


@dataclass(frozen=True, slots=True)
class Tally:
    """What a process did, at its end."""

    cpu_s: float
    """Since the run began."""
    late_ms: list[float]
    """How late every control period in which something was decided began: whether the machine
    kept up."""
    dropped: Counter[str]
    """Answers not used, by reason."""
    silences: int
    """Requests repeated because nothing came back."""
    requests: int


Order = Begin | Give | Cancel | Leave
Report = Ready | Done | Tally
