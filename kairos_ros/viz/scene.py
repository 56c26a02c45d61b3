"""What the view knows at one moment: robots, their chunks and judges, queue and engines."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kairos_ros.telemetry.events import EngineReported
from kairos_ros.viz.bodies import Body
from kairos_ros.viz.chunk_paths import ChunkPath

EVENT_SHOWN_S = 4.0
VERDICT_OLD_S = 3.0
"""A judge that has said nothing for so long is shown as silent."""
SILENT_S = 2.0
"""What a serving node said longer ago is not how things stand."""


@dataclass(frozen=True, slots=True)
class LastVerdict:
    """The newest verdict of a robot's safety service."""

    safe: bool
    probability: float
    """NaN where the model does not tell."""
    latency_s: float
    ago_s: float


@dataclass(frozen=True, slots=True)
class LastTransition:
    """What a robot's state machine did last."""

    reason: str
    ago_s: float
    told: bool = True
    """People want to know why: a judge or the planner caused it, not the course of the task."""


@dataclass(frozen=True, slots=True)
class RobotPaths:
    """The paths of one robot."""

    running: ChunkPath | None = None
    done: float = 0.0
    """Actions of it that are behind the arm, a fraction included."""
    next: ChunkPath | None = None
    end: int | None = None
    """Actions of it that the arm will have made in the end; None: all up to its horizon."""


@dataclass(frozen=True, slots=True)
class RobotDrawing:
    """One robot. Its frame is at the base of the arm."""

    name: str
    slot: int
    """Its place in the grid; the same as long as it is there."""
    frame: str
    state: str
    instruction: str = ""
    round: int = 0
    horizon: int = 0
    buffered: int = 0
    stalled_s: float = 0.0
    tasks_done: int = 0
    tasks_succeeded: int = 0
    wait_ratio: float | None = None
    """None where no serving node knows the robot."""
    asks: str = ""
    """queued, computed or nothing."""
    surprise: str = ""
    """Why it asked early for its newest round; empty where it did not."""
    policy: str = ""
    """Name of the policy that its task is served with, where the server serves several."""
    body: Body | None = None
    """None: not known what it looks like."""
    joint_names: tuple[str, ...] = ()
    joints: np.ndarray = field(default_factory=lambda: np.zeros(0))
    chunks: RobotPaths = RobotPaths()
    judged: LastVerdict | None = None
    transition: LastTransition | None = None
    machine: str = ""
    """Mode of its state machine: running, holding, returning_to_safe_state, retrying or
    waiting_for_human. Empty where it has none, or none was heard."""

    @property
    def mode(self) -> str:
        """State for people: that of the state machine where it tells more."""
        if self.machine in ("returning_to_safe_state", "retrying", "waiting_for_human"):
            return self.machine
        return self.state


@dataclass(frozen=True, slots=True)
class Serving:
    """What the serving node says; None of it before it was heard."""

    active: bool
    ago_s: float
    queue: int
    chunks_per_s: float
    scheduling: str
    horizon: str
    engines: tuple[EngineReported, ...]

    @property
    def silent(self) -> bool:
        return self.ago_s > SILENT_S


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything of one moment."""

    frame: str
    """That the fleet stands in."""
    robots: Mapping[str, RobotDrawing]
    serving: Serving | None
    origins: Mapping[str, tuple[float, float, float]]
    """Where each robot's base is, in `frame`."""
    back: float
    """y behind the last row of robots, in m."""
