"""ROS messages to and from the serving side's plain data."""

from array import array

import numpy as np

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.msg import ActionChunk, ChunkRequest, ChunkUpdates, ExecutionInfo, RobotStatus
from kairos_ros.serving.exchange import (
    Actions,
    Announcement,
    Answer,
    Execution,
    Query,
    Refusal,
)

LONGEST_S = 1e6
"""Longest duration in a request. Twelve days are enough, and far from overflowing nanoseconds."""
CONTROL_RATES_HZ = (0.01, 100_000.0)


def to_announcement(message: RobotStatus) -> Announcement:
    return Announcement(
        message.robot, message.session, message.task, message.state == RobotStatus.LEAVING
    )


def to_query(message: ChunkRequest) -> Query:
    """Raises WireError where the message contradicts itself."""
    if len(message.image_keys) != len(message.images):
        raise WireError(f"{len(message.image_keys)} image keys for {len(message.images)} images")
    _check_duration("deadline_s", message.deadline_s)
    _check_duration("observed_ago_s", message.observed_ago_s)
    return Query(
        robot=message.robot,
        session=message.session,
        task=message.task,
        round=message.round,
        attempt=message.attempt,
        instruction=message.instruction,
        kind=message.task_kind or message.instruction,
        state=np.array(message.state, np.float32),
        images={
            key: bytes(image.data)
            for key, image in zip(message.image_keys, message.images, strict=True)
        },
        execution=_to_execution(message.execution),
        horizon=message.horizon_policy,
        deadline_s=message.deadline_s,
        observed_ago_s=message.observed_ago_s,
        seed=message.seed,
    )


def _to_execution(info: ExecutionInfo) -> Execution:
    _check_duration("execution.started_ago_s", info.started_ago_s)
    _check_duration("execution.ended_ago_s", info.ended_ago_s)
    slowest, fastest = CONTROL_RATES_HZ
    rate_hz = info.control_rate_hz
    if not (slowest <= rate_hz <= fastest or (rate_hz == 0 and not info.started)):
        raise WireError(
            f"execution.control_rate_hz is {rate_hz}; it goes from {slowest:g} to {fastest:g} Hz"
        )
    return Execution(
        round=info.round,
        started=info.started,
        started_ago_s=info.started_ago_s,
        ended_ago_s=info.ended_ago_s,
        actions_remaining=info.actions_remaining,
        chunk_index=info.chunk_index,
        control_rate_hz=info.control_rate_hz,
    )


def _check_duration(name: str, seconds: float) -> None:
    if not 0 <= seconds <= LONGEST_S:
        raise WireError(f"{name} is {seconds}; a duration is from 0 to {LONGEST_S:g} s")


def from_answer(answer: Answer) -> ActionChunk:
    message = ActionChunk(
        robot=answer.robot,
        session=answer.session,
        task=answer.task,
        round=answer.round,
        attempt=answer.attempt,
    )
    match answer.body:
        case Actions() as body:
            message.kind = ActionChunk.ACTIONS
            message.horizon, message.action_dim = body.actions.shape
            message.actions = _flat(body.actions)
            message.confidence = _flat(body.confidence)
            message.horizon_reason, message.reason = body.horizon_reason, body.reason
            message.chunk_size, message.batch_size = body.chunk_size, body.batch_size
            message.queued_s, message.compute_s = body.queued_s, body.compute_s
            message.server_s, message.engine_latency_s = body.server_s, body.engine_latency_s
            message.tier, message.engine, message.policy = body.tier, body.engine, body.policy
        case Refusal() as body:
            message.kind = ActionChunk.REFUSED
            message.refusal, message.reason = int(body.code), body.reason
            message.retry_after_s = body.retry_after_s
        case _:
            message.kind = ActionChunk.REFETCH
    return message


def updates_message(answer: Answer, actions: Actions, *, full: bool) -> ChunkUpdates:
    """The whole chunk behind `actions`; `full` with every sampler step's update."""
    chunk, updates = actions.whole.chunk, actions.whole.updates
    norms = np.linalg.norm(updates, axis=2)
    return ChunkUpdates(
        robot=answer.robot,
        session=answer.session,
        task=answer.task,
        round=answer.round,
        attempt=answer.attempt,
        policy=actions.policy,
        horizon_policy=actions.horizon_policy,
        horizon=len(actions.actions),
        chunk_size=chunk.shape[0],
        action_dim=chunk.shape[1],
        steps=len(updates),
        chunk=_flat(chunk),
        action_scale=array("f", actions.scale or ()),
        step_norms=_flat(norms),
        updates=_flat(updates) if full else array("f"),
    )


def _flat(values: np.ndarray) -> array:
    """Row major. A generated setter takes an `array` as it is; of a NumPy array it checks and
    converts every element."""
    return array("f", np.ascontiguousarray(values, np.float32).tobytes())


def malformed(message: ChunkRequest, reason: str) -> Answer:
    """The refusal of a request that could not even be read."""
    return Answer(
        message.robot,
        message.session,
        message.task,
        message.round,
        message.attempt,
        Refusal(RefusalCode.MALFORMED, reason),
    )
