"""Messages as events: the one place where listeners, live or of a bag, take messages apart.

Messages are known by their fields, as rclpy and bags have classes of their own for each type.
Raises WireError for what contradicts itself; `AttributeError` where a bag's definition lacks a
field that is needed.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Actions, Refetch, Refusal
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.core.pipeline import TaskState
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.wire_check import LONGEST_S, check_duration
from kairos_ros.telemetry.answer import answer_of
from kairos_ros.telemetry.decode_fleet import fleet_reported, health_reported, surprise_of
from kairos_ros.telemetry.events import (
    CellJudged,
    ChunkAnswered,
    ChunkComputed,
    ChunkRequested,
    ControlReported,
    Event,
    ExecutionReported,
    HealthReported,
    ModeChanged,
    ProgressJudged,
    RobotReported,
    TaskEndReported,
    TaskKey,
    TaskStartReported,
)

_STARTED = 0
"""TaskEvent.kind."""
_PROGRESS = (TaskState.ONGOING, TaskState.DONE, TaskState.FAILED)
"""By TaskProgress.state."""


def robot_reported(body: Any, robot: str, at_s: float) -> RobotReported:
    if body.state not in list(RobotState):
        raise WireError(f"state {body.state} is unknown; update one of the peers")
    return RobotReported(
        at_s=at_s,
        robot=body.robot,
        session=body.session,
        state=RobotState(body.state),
        task=body.task,
        instruction=body.instruction,
        round=body.round,
        horizon=body.horizon,
        buffered=body.buffered,
        control_rate_hz=body.control_rate_hz,
        stalled_s=body.stalled_s,
        tasks_done=body.tasks_done,
        tasks_succeeded=body.tasks_succeeded,
        dropped=body.chunks_dropped,
        guarded=body.actions_guarded,
        state_dim=body.state_dim,
        action_dim=body.action_dim,
        cameras=tuple(body.image_keys),
        server=getattr(body, "server", ""),  # older bags have no names of servers
    )


def chunk_requested(body: Any, robot: str, at_s: float) -> ChunkRequested:
    doing, observed_s = body.execution, at_s - body.observed_ago_s
    ended = doing.started and not doing.actions_remaining
    return ChunkRequested(
        at_s=observed_s,
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
        started_s=observed_s - doing.started_ago_s if doing.started else math.nan,
        ended_s=observed_s - doing.ended_ago_s if ended else math.nan,
        server=getattr(body, "server", ""),
        control_rate_hz=doing.control_rate_hz,
        **surprise_of(doing, told=getattr(doing, "surprised", False)),
    )


def chunk_answered(body: Any, robot: str, at_s: float) -> ChunkAnswered | None:
    """None for a refetch, which is no answer. Raises as `answer_of`."""
    answer = answer_of(body)
    if isinstance(answer.body, Refetch):
        return None
    nothing = Actions(np.zeros((0, 0), np.float32), np.zeros(0, np.float32))
    told = answer.body if isinstance(answer.body, Actions) else nothing
    return ChunkAnswered(
        at_s=at_s,
        key=TaskKey(answer.id.robot, answer.id.session, answer.id.task),
        round=answer.id.round,
        attempt=answer.id.attempt,
        refused=isinstance(answer.body, Refusal),
        reason=answer.body.reason,
        horizon=body.horizon,
        chunk_size=told.chunk_size,
        action_dim=body.action_dim,
        actions=told.actions if told.actions.size else None,
        confidence=told.confidence,
        horizon_reason=told.horizon_reason,
        queued_s=told.queued_ns / 1e9,
        compute_s=told.compute_ns / 1e9,
        server_s=told.server_ns / 1e9,
        batch_size=told.batch_size,
        tier=told.tier,
        engine=told.engine,
        policy=told.policy,
        server=answer.server,
    )


def chunk_computed(body: Any, robot: str, at_s: float) -> ChunkComputed:
    n, d, k = body.chunk_size, body.action_dim, body.steps
    chunk, scale, norms, updates = (
        np.asarray(values, np.float32)
        for values in (body.chunk, body.action_scale, body.step_norms, body.updates)
    )
    if chunk.size != n * d or norms.size != k * n:
        raise WireError("its chunk or its step_norms have another size than it says")
    if updates.size not in (0, k * n * d):
        raise WireError("its updates have another size than it says")
    if not all(np.isfinite(one).all() for one in (chunk, norms, updates)):
        raise WireError("its chunk or its updates are not finite")
    if scale.size and not (scale > 0).all():
        raise WireError("its action_scale is not positive")
    return ChunkComputed(
        at_s=at_s,
        key=_key(body),
        round=body.round,
        attempt=body.attempt,
        horizon_policy=body.horizon_policy,
        chunk=chunk.reshape(n, d),
        scale=scale if scale.size else None,
        step_norms=norms.reshape(k, n),
        updates=updates.reshape(k, n, d) if updates.size else None,
    )


def task_event(body: Any, robot: str, at_s: float) -> TaskStartReported | TaskEndReported:
    key = _key(body)
    goal = TaskStartReported(
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
    _check_result(body)
    return TaskEndReported(
        at_s=at_s,
        key=key,
        goal=goal,
        first_request_s=at_s - body.first_request_ago_s,
        success=body.success,
        outcome=body.outcome,
        duration_s=body.duration_s,
        actions=body.actions,
        ended=getattr(body, "ended", False),
        stalled_s=body.stalled_s,
        first_wait_s=body.first_wait_s,
        refusals=body.refusals,
        dropped=body.dropped,
        guarded=body.guarded,
        round_latency_s=tuple(body.round_latency_s.tolist()),
        round_executed=tuple(body.round_executed.tolist()),
        round_started_s=tuple(body.round_started_s.tolist()),
        round_ended_s=tuple(body.round_ended_s.tolist()),
        round_seam=tuple(np.asarray(getattr(body, "round_seam", ())).tolist()),
        mean_step=getattr(body, "mean_step", 0.0),
        round_surprise=tuple(np.asarray(getattr(body, "round_surprise", ())).tolist()),
    )


def _check_result(body: Any) -> None:
    """Of a TaskEvent. Raises WireError for times that are none, and for rounds that are told by
    lists of different lengths."""
    for name in ("first_request_ago_s", "duration_s", "stalled_s", "first_wait_s"):
        check_duration(name, getattr(body, name))
    rounds = len(body.round_executed)
    for name in ("round_latency_s", "round_started_s", "round_ended_s"):
        times = np.asarray(getattr(body, name), float)
        if len(times) != rounds:
            raise WireError(f"{name} is of {len(times)} rounds, round_executed of {rounds}")
        if not (np.isnan(times) | ((times >= 0) & (times <= LONGEST_S))).all():
            raise WireError(f"{name} is no duration from 0 to {LONGEST_S:g} s")


def execution_reported(body: Any, robot: str, at_s: float) -> ExecutionReported:
    return ExecutionReported(
        at_s=at_s,
        robot=robot,
        round=body.round,
        started=body.started,
        holding=body.holding,
        remaining=body.actions_remaining,
        chunk_index=body.chunk_index,
        control_rate_hz=body.control_rate_hz,
        surprised=getattr(body, "surprised", False),
        **surprise_of(body),
    )


def control_reported(body: Any, robot: str, at_s: float) -> ControlReported | None:
    """None of an older bag, which does not tell actions."""
    if not hasattr(body, "action"):
        return None
    state, action = np.asarray(body.values, np.float32), np.asarray(body.action, np.float32)
    if len(state) != len(body.names):
        raise WireError("its names and values are of different lengths")
    if not (np.isfinite(state).all() and np.isfinite(action).all()):
        raise WireError("its state or its action is not finite")
    return ControlReported(
        at_s=at_s,
        key=TaskKey(robot, body.session, body.task),
        stamp=(body.stamp.sec, body.stamp.nanosec),
        names=tuple(body.names),
        state=state,
        action=action if action.size else None,
        round=body.round,
        chunk_index=body.chunk_index,
        mode=body.mode,
    )


def cell_judged(body: Any, robot: str, at_s: float) -> CellJudged:
    return CellJudged(
        at_s=at_s,
        key=_key(body),
        frame=(body.frame.sec, body.frame.nanosec),
        service=body.service,
        safe=body.safe,
        probability=body.probability,
        latency_s=body.latency_s,
    )


def progress_judged(body: Any, robot: str, at_s: float) -> ProgressJudged | None:
    """None for a state that is not known here."""
    if body.state >= len(_PROGRESS):
        return None
    return ProgressJudged(
        at_s=at_s,
        key=_key(body),
        frame=(body.frame.sec, body.frame.nanosec),
        service=body.service,
        state=_PROGRESS[body.state],
        latency_s=body.latency_s,
    )


def mode_changed(body: Any, robot: str, at_s: float) -> ModeChanged:
    return ModeChanged(
        at_s=at_s,
        key=_key(body),
        before=body.before,
        after=body.after,
        trigger=body.trigger,
        component=body.component,
        reason=body.reason,
        effects=tuple(body.effects),
        reacted_s=body.reacted_s,
        frame_age_s=body.frame_age_s,
    )


def _key(body: Any) -> TaskKey:
    return TaskKey(body.robot, body.session, body.task)


Decode = Callable[[Any, str, float], Event | None]
"""Of a message, the robot of its topic, and when it came."""
DECODE: dict[str, Decode] = {
    "kairos_ros/msg/RobotStatus": robot_reported,
    "kairos_ros/msg/ChunkRequest": chunk_requested,
    "kairos_ros/msg/ActionChunk": chunk_answered,
    "kairos_ros/msg/ChunkUpdates": chunk_computed,
    "kairos_ros/msg/TaskEvent": task_event,
    "kairos_ros/msg/ExecutionInfo": execution_reported,
    "kairos_ros/msg/PolicyState": control_reported,
    "kairos_ros/msg/SafetyVerdict": cell_judged,
    "kairos_ros/msg/TaskProgress": progress_judged,
    "kairos_ros/msg/PipelineEvent": mode_changed,
    "kairos_ros/msg/FleetState": fleet_reported,
    "diagnostic_msgs/msg/DiagnosticArray": health_reported,
}
"""By type of message."""


def decode(kind: str, topic: str, body: Any, at_s: float, names: FleetNames = ROOT) -> Event | None:
    """kind: such as `kairos_ros/msg/RobotStatus`. topic: one of a robot, or of the whole fleet.
    names: of the fleet that is listened to.

    None for a message that says nothing to listeners. Raises WireError, see above.
    """
    event = DECODE[kind](body, names.robot_of(topic), at_s)
    return _own_health(event, names) if isinstance(event, HealthReported) else event


def _own_health(report: HealthReported, names: FleetNames) -> HealthReported:
    """Without what is said of other fleets: all of them share /diagnostics."""
    named = ((names.own_diagnostic(part.name), part) for part in report.parts)
    parts = tuple(replace(part, name=name) for name, part in named if name is not None)
    return replace(report, parts=parts)
