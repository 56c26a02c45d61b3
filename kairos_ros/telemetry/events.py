"""One message of a fleet each, as plain data.

`at_s` is when the message was received, in seconds on the clock of whoever received it: a live
subscriber's monotonic clock, or the time since the first message of a bag.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.pipeline import TaskState
from kairos_ros.core.robot_state import RobotState

Stamp = tuple[int, int]
"""Seconds and nanoseconds of a robot's clock, which name a picture of it."""


@dataclass(frozen=True, slots=True)
class TaskKey:
    """One task of one life of one robot."""

    robot: str
    session: str
    task: str

    @property
    def name(self) -> str:
        """What its trace is called by, behind the scene."""
        return f"{self.robot}-{self.session}-{self.task}"


@dataclass(frozen=True, slots=True)
class RobotReported:
    """A robot's announcement or heartbeat; see RobotStatus.msg."""

    at_s: float
    robot: str
    session: str = ""
    state: RobotState = RobotState.IDLE
    task: str = ""
    instruction: str = ""
    round: int = 0
    horizon: int = 0
    buffered: int = 0
    """Actions left."""
    control_rate_hz: float = 0.0
    stalled_s: float = 0.0
    """In this task."""
    tasks_done: int = 0
    tasks_succeeded: int = 0
    dropped: int = 0
    guarded: int = 0
    state_dim: int = 0
    action_dim: int = 0
    cameras: tuple[str, ...] = ()
    server: str = ""
    """The serving node that it is bound to; empty: none."""

    @property
    def buffered_s(self) -> float:
        """Actions left in the buffer, as time at the control rate; 0 where that is not known."""
        return self.buffered / self.control_rate_hz if self.control_rate_hz > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ChunkRequested:
    """A chunk request."""

    at_s: float
    """When its observation was taken: received less `observed_ago_s`."""
    key: TaskKey
    round: int
    attempt: int
    kind: str
    instruction: str
    seed: int
    horizon_policy: str
    state: np.ndarray
    """float32 [state_dim]."""
    executing: int
    """Round whose actions were being executed; 0 before the first chunk."""
    executed: int
    """Actions of that round, so far."""
    remaining: int
    started_s: float
    """When that round's first action was executed; NaN before it."""
    ended_s: float
    """When its last one ended; NaN while it is executed."""
    control_rate_hz: float
    server: str
    """The serving node that shall answer; empty: any, or a bag of before there was a name."""
    surprise: float = 0.0
    """How far the arm departed from its actions, where it asked early, therefore; 0 otherwise."""
    surprise_joint: str = ""


@dataclass(frozen=True, slots=True)
class ChunkAnswered:
    """Actions or a refusal; a refetch is no answer."""

    at_s: float
    key: TaskKey
    round: int
    attempt: int
    refused: bool
    reason: str
    """Of the scheduler's decision, or of the refusal."""
    horizon: int
    chunk_size: int
    action_dim: int
    actions: np.ndarray | None
    """float32 [horizon, action_dim]; None of a refusal, and where the message contradicts that."""
    confidence: np.ndarray
    """float32 [horizon], or of another length where it is not known."""
    horizon_reason: str
    queued_s: float
    compute_s: float
    server_s: float
    batch_size: int
    tier: str
    engine: str
    policy: str
    server: str
    """That answered."""


@dataclass(frozen=True, slots=True)
class ChunkComputed:
    """The whole chunk behind an answer."""

    at_s: float
    key: TaskKey
    round: int
    attempt: int
    horizon_policy: str
    chunk: np.ndarray
    """float32 [N, D]."""
    scale: np.ndarray | None
    """float32 [D]."""
    step_norms: np.ndarray
    """float32 [K, N]."""
    updates: np.ndarray | None
    """float32 [K, N, D]."""


@dataclass(frozen=True, slots=True)
class TaskStartReported:
    at_s: float
    key: TaskKey
    kind: str
    instruction: str
    scene: str
    seed: int
    horizon_policy: str
    control_rate_hz: float


@dataclass(frozen=True, slots=True)
class TaskEndReported:
    """A task's result; see TaskEvent.msg."""

    at_s: float
    key: TaskKey
    goal: TaskStartReported
    first_request_s: float
    """When the task's first request was sent."""
    success: bool
    outcome: str
    duration_s: float
    actions: int
    stalled_s: float
    first_wait_s: float
    refusals: int
    dropped: int
    guarded: int
    round_latency_s: tuple[float, ...]
    """NaN of a round that was given up; older bags have the time until then."""
    round_executed: tuple[int, ...]
    round_started_s: tuple[float, ...]
    """Since the first request; NaN where nothing was executed."""
    round_ended_s: tuple[float, ...]
    round_seam: tuple[float, ...] = ()
    """NaN in the first round and without an action; older bags do not tell."""
    mean_step: float = 0.0
    round_surprise: tuple[float, ...] = ()
    """0 of a round that was not asked for early; older bags do not tell."""
    ended: bool = False
    """It came to its own limit, and nobody knows whether it succeeded."""


@dataclass(frozen=True, slots=True)
class ExecutionReported:
    """What a robot executes; see ExecutionInfo.msg."""

    at_s: float
    robot: str
    round: int
    started: bool
    holding: bool
    remaining: int
    """Actions of the round that are still in the buffer."""
    chunk_index: int
    """Index in the round's chunk of the next action."""
    control_rate_hz: float
    surprised: bool = False
    """The newest round was asked for early."""
    surprise: float = 0.0
    """How far the arm departs from its actions, or departed when it asked; older bags do not
    tell."""
    surprise_joint: str = ""


@dataclass(frozen=True, slots=True)
class ControlReported:
    """One control period of a robot's body; see PolicyState.msg."""

    at_s: float
    key: TaskKey
    """Its task is empty where none runs."""
    stamp: Stamp
    names: tuple[str, ...]
    state: np.ndarray
    """float32 [state_dim], before the action."""
    action: np.ndarray | None
    """float32 [action_dim]; None: the arm held."""
    round: int
    """0 of an action that is of no chunk."""
    chunk_index: int
    mode: str
    """Empty without rules."""


@dataclass(frozen=True, slots=True)
class CellJudged:
    """A verdict of a safety service; see SafetyVerdict.msg."""

    at_s: float
    key: TaskKey
    frame: Stamp
    service: str
    safe: bool
    probability: float
    """Of this answer, 0 to 1; NaN where the model does not tell."""
    latency_s: float


@dataclass(frozen=True, slots=True)
class ProgressJudged:
    """A report of a monitor, or of a simulated robot about itself; see TaskProgress.msg."""

    at_s: float
    key: TaskKey
    frame: Stamp
    service: str
    state: TaskState
    latency_s: float


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """A transition of a robot's state machine; see PipelineEvent.msg."""

    at_s: float
    key: TaskKey
    before: str
    after: str
    trigger: str
    component: str
    """Empty: none of them caused it."""
    reason: str
    effects: tuple[str, ...]
    reacted_s: float
    frame_age_s: float
    """NaN without a picture."""


@dataclass(frozen=True, slots=True)
class RobotScheduled:
    """How a serving node sees a robot; see RobotState.msg."""

    robot: str = ""
    horizon: int = 0
    """Actions of the newest chunk that was sent to it, which may wait behind the running one."""
    horizon_reason: str = ""
    wait_ratio: float = 0.0
    """Share of the task's life spent waiting for compute, 0 to 1."""
    pending: bool = False
    """A request is in the queue."""
    running: bool = False
    """A request is in an engine."""
    reason: str = ""
    """Of the last decision about this robot."""
    request_period_s: float = 0.0
    """Least time between its requests that it was told; 0: no limit."""
    planned_period_s: float = 0.0
    """The same by the plan that is followed; 0: none limits it."""
    over_rate: bool = False
    """It asks more often than it was told."""
    policy: str = ""
    """That its task is served with: type and fingerprint of the weights, or nothing yet."""
    policy_name: str = ""
    """Its name, where the server serves several."""
    surprised: bool = False
    """Its newest round was asked for early, because its arm did not move as its actions say."""
    surprise: float = 0.0
    surprise_joint: str = ""
    surprises: int = 0
    """Rounds that it asked for so."""


@dataclass(frozen=True, slots=True)
class EngineReported:
    """One engine of a serving node; see EngineState.msg."""

    name: str
    tier: str
    state: str
    batch: int
    max_batch: int
    load: float
    """0 to 1."""
    batches: int
    restarts: int
    error: str
    rtt_s: float = 0.0
    """Of the link to it, as the next three; all 0 for an engine of the serving node's own host."""
    mbps: float = 0.0
    in_flight: int = 0
    """Batches sent and not answered."""
    request_bytes: float = 0.0
    policy: str = ""
    requests: int = 0

    @property
    def remote(self) -> bool:
        return self.tier == "cloud"


@dataclass(frozen=True, slots=True)
class FleetReported:
    """What a serving node says of itself and its robots; see FleetState.msg."""

    at_s: float
    server: str
    active: bool
    scheduling: str
    horizon: str
    queue: int
    requests_per_s: float
    chunks_per_s: float
    counters: Mapping[str, int]
    """Refusals and faults since start."""
    robots: tuple[RobotScheduled, ...]
    engines: tuple[EngineReported, ...]
    plan: str = ""
    """Identity of the plan that it follows; empty: none."""
    staged_plan: str = ""
    """Of the one that it changes to."""


@dataclass(frozen=True, slots=True)
class Health:
    """One diagnostic status."""

    at_s: float
    name: str
    hardware: str
    level: str
    """ok, warn, error or stale."""
    message: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HealthReported:
    at_s: float
    parts: tuple[Health, ...]


TaskEvent = ChunkRequested | ChunkAnswered | ChunkComputed | TaskStartReported | TaskEndReported
Judgement = CellJudged | ProgressJudged
Event = (
    RobotReported
    | TaskEvent
    | ExecutionReported
    | ControlReported
    | Judgement
    | ModeChanged
    | FleetReported
    | HealthReported
)
