"""One pass over a bag: the messages of a fleet as plain events, in order of time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kairos_ros.evaluation.bag.reader import Bag, BagMessage
from kairos_ros.evaluation.run import Activity

_ACTIVITIES: dict[int, Activity] = {0: "idle", 1: "executing", 2: "holding", 3: "down"}
"""RobotStatus.state."""
_ACTIONS, _REFUSED = 0, 1
"""ActionChunk.kind."""
_STARTED = 0
"""TaskEvent.kind."""


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
class Status:
    """A robot's announcement or heartbeat."""

    at_s: float
    robot: str
    session: str
    activity: Activity


@dataclass(frozen=True, slots=True)
class Asked:
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


@dataclass(frozen=True, slots=True)
class Answered:
    """Actions or a refusal; a refetch is no answer."""

    at_s: float
    key: TaskKey
    round: int
    attempt: int
    refused: bool
    reason: str
    horizon: int
    chunk_size: int
    action_dim: int
    horizon_reason: str
    queued_s: float
    compute_s: float
    server_s: float
    batch_size: int
    tier: str
    engine: str
    policy: str


@dataclass(frozen=True, slots=True)
class Updates:
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
class Began:
    at_s: float
    key: TaskKey
    kind: str
    instruction: str
    scene: str
    seed: int
    horizon_policy: str
    control_rate_hz: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A task's result; see TaskEvent.msg."""

    at_s: float
    key: TaskKey
    goal: Began
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


Event = Status | Asked | Answered | Updates | Began | Ended


def events(bag: Bag) -> Iterator[Event]:
    """What the fleet said, with times since the bag's first message. Raises ConfigError."""
    for message in bag.messages(tuple(_READ)):
        event = _READ[message.type](message)
        if event is not None:
            yield event


def _status(message: BagMessage) -> Status:
    body = message.body
    activity = _ACTIVITIES.get(body.state, "idle")
    return Status(message.at_s, body.robot, body.session, activity)


def _asked(message: BagMessage) -> Asked:
    body, doing = message.body, message.body.execution
    at_s = message.at_s - body.observed_ago_s
    ended = doing.started and not doing.actions_remaining
    return Asked(
        at_s=at_s,
        key=_key(body),
        round=body.round,
        attempt=body.attempt,
        kind=body.task_kind or body.instruction,
        instruction=body.instruction,
        seed=body.seed,
        horizon_policy=body.horizon_policy,
        state=np.asarray(body.state, np.float32),
        executing=doing.round,
        executed=doing.actions_executed,
        remaining=doing.actions_remaining,
        started_s=at_s - doing.started_ago_s if doing.started else np.nan,
        ended_s=at_s - doing.ended_ago_s if ended else np.nan,
        control_rate_hz=doing.control_rate_hz,
    )


def _answered(message: BagMessage) -> Answered | None:
    body = message.body
    if body.kind not in (_ACTIONS, _REFUSED):
        return None
    return Answered(
        at_s=message.at_s,
        key=_key(body),
        round=body.round,
        attempt=body.attempt,
        refused=body.kind == _REFUSED,
        reason=body.reason,
        horizon=body.horizon,
        chunk_size=body.chunk_size,
        action_dim=body.action_dim,
        horizon_reason=body.horizon_reason,
        queued_s=body.queued_s,
        compute_s=body.compute_s,
        server_s=body.server_s,
        batch_size=body.batch_size,
        tier=body.tier,
        engine=body.engine,
        policy=body.policy,
    )


def _updates(message: BagMessage) -> Updates | None:
    body = message.body
    n, d, k = body.chunk_size, body.action_dim, body.steps
    fits = body.chunk.size == n * d and body.step_norms.size == k * n
    if not fits or body.updates.size not in (0, k * n * d):
        return None
    return Updates(
        at_s=message.at_s,
        key=_key(body),
        round=body.round,
        attempt=body.attempt,
        horizon_policy=body.horizon_policy,
        chunk=body.chunk.reshape(n, d),
        scale=body.action_scale if body.action_scale.size else None,
        step_norms=body.step_norms.reshape(k, n),
        updates=body.updates.reshape(k, n, d) if body.updates.size else None,
    )


def _task(message: BagMessage) -> Began | Ended:
    body, at_s = message.body, message.at_s
    key = _key(body)
    goal = Began(
        at_s=at_s,
        key=key,
        kind=body.task_kind or body.instruction,
        instruction=body.instruction,
        scene=body.scene,
        seed=body.seed,
        horizon_policy=body.horizon_policy,
        control_rate_hz=body.control_rate_hz,
    )
    if body.kind == _STARTED:
        return goal
    return Ended(
        at_s=at_s,
        key=key,
        goal=goal,
        first_request_s=at_s - body.first_request_ago_s,
        success=body.success,
        outcome=body.outcome,
        duration_s=body.duration_s,
        actions=body.actions,
        stalled_s=body.stalled_s,
        first_wait_s=body.first_wait_s,
        refusals=body.refusals,
        dropped=body.dropped,
        guarded=body.guarded,
        round_latency_s=tuple(body.round_latency_s.tolist()),
        round_executed=tuple(body.round_executed.tolist()),
        round_started_s=tuple(body.round_started_s.tolist()),
        round_ended_s=tuple(body.round_ended_s.tolist()),
    )


def _key(body: Any) -> TaskKey:
    return TaskKey(body.robot, body.session, body.task)


_READ = {
    "kairos_ros/msg/RobotStatus": _status,
    "kairos_ros/msg/ChunkRequest": _asked,
    "kairos_ros/msg/ActionChunk": _answered,
    "kairos_ros/msg/ChunkUpdates": _updates,
    "kairos_ros/msg/TaskEvent": _task,
}
