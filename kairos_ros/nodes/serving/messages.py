"""ROS messages to and from the serving side's plain data."""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.core.exchange import (
    Actions,
    Announcement,
    Answer,
    Execution,
    Observation,
    Refusal,
    Request,
    RequestId,
    WholeChunk,
    no_actions,
)
from kairos_ros.core.fit import RobotInterface, camera_name
from kairos_ros.core.horizons.surprise import CLIP
from kairos_ros.core.wire_check import (
    ID_BYTES,
    OBSERVATIONS,
    TEXT_BYTES,
    TooLargeError,
    check_text,
    duration_ns,
    printable,
)
from kairos_ros.msg import ActionChunk, ChunkRequest, ChunkUpdates, ExecutionInfo, RobotStatus
from kairos_ros.msg import Observation as ObservationMessage

CONTROL_RATES_HZ = (0.01, 100_000.0)


def to_announcement(message: RobotStatus) -> Announcement:
    return Announcement(
        message.robot,
        message.session,
        message.task,
        message.state == RobotStatus.LEAVING,
        _to_interface(message),
        message.policy,
    )


def _to_interface(message: RobotStatus) -> RobotInterface | None:
    if not message.action_dim:
        return None
    sizes = [*zip(message.image_height_px, message.image_width_px, strict=False)]
    known = len(sizes) == len(message.request_image_keys)
    cameras = {
        key: sizes[i] if known and all(sizes[i]) else None
        for i, key in enumerate(message.request_image_keys)
    }
    return RobotInterface(
        message.state_dim, message.action_dim, cameras, frozenset(message.absent_cameras)
    )


def to_request(message: ChunkRequest) -> Request:
    """Raises WireError where the message contradicts itself, TooLargeError for an endless text."""
    for field in ("robot", "session", "task"):
        check_text(field, getattr(message, field), ID_BYTES)
    for field in ("instruction", "task_kind", "horizon_policy", "policy"):
        check_text(field, getattr(message, field), TEXT_BYTES)
    for key in message.image_keys:
        check_text("image_keys", key, ID_BYTES)
    if len(message.earlier) >= OBSERVATIONS:
        raise TooLargeError(
            f"{len(message.earlier) + 1} observations, at most {OBSERVATIONS} are accepted"
        )
    for seen in (message, *message.earlier):
        if len(message.image_keys) != len(seen.images):
            raise WireError(f"{len(message.image_keys)} image keys for {len(seen.images)} images")
    if len({camera_name(key) for key in message.image_keys}) < len(message.image_keys):
        raise WireError(f"two images for one camera: {printable(', '.join(message.image_keys))}")
    deadline_ns = duration_ns("deadline_s", message.deadline_s)
    observed_ago_ns = duration_ns("observed_ago_s", message.observed_ago_s)
    return Request(
        _asked(message),
        instruction=message.instruction,
        kind=message.task_kind or message.instruction,
        horizon_policy=message.horizon_policy,
        seed=message.seed,
        execution=_to_execution(message.execution),
        server=message.server,
        observation=_to_observation(message, message.image_keys),
        observed_ago_ns=observed_ago_ns,
        deadline_ns=deadline_ns,
        committed=_to_actions("committed", message.committed, message.committed_actions),
        earlier=tuple(_to_observation(seen, message.image_keys) for seen in message.earlier),
        policy=message.policy,
        task_actions=message.task_actions,
        executed=_to_actions("executed", message.executed, message.executed_actions),
    )


def _to_observation(
    seen: ChunkRequest | ObservationMessage, image_keys: Sequence[str]
) -> Observation:
    images = (bytes(image.data) for image in seen.images)
    return Observation(np.array(seen.state, np.float32), dict(zip(image_keys, images, strict=True)))


def _to_actions(name: str, numbers: Sequence[float], rows: int) -> NDArray[np.float32]:
    values = np.array(numbers, np.float32)
    if not len(values):
        return no_actions()
    if not rows or len(values) % rows:
        raise WireError(f"{len(values)} numbers in {name} for {rows} {name}_actions")
    return values.reshape(rows, -1)


def _asked(message: ChunkRequest) -> RequestId:
    return RequestId(message.robot, message.session, message.task, message.round, message.attempt)


def _to_execution(info: ExecutionInfo) -> Execution:
    started_ago_ns = duration_ns("execution.started_ago_s", info.started_ago_s)
    ended_ago_ns = duration_ns("execution.ended_ago_s", info.ended_ago_s)
    slowest, fastest = CONTROL_RATES_HZ
    rate_hz = info.control_rate_hz
    if not (slowest <= rate_hz <= fastest or (rate_hz == 0 and not info.started)):
        raise WireError(
            f"execution.control_rate_hz is {rate_hz}; it goes from {slowest:g} to {fastest:g} Hz"
        )
    if not 0 <= info.surprise <= CLIP:  # nor for NaN
        raise WireError(f"execution.surprise is {info.surprise}; it goes from 0 to {CLIP:g}")
    check_text("execution.surprise_joint", info.surprise_joint, ID_BYTES)
    return Execution(
        round=info.round,
        started=info.started,
        holding=info.holding,
        started_ago_ns=started_ago_ns,
        ended_ago_ns=ended_ago_ns,
        executed=info.actions_executed,
        remaining=info.actions_remaining,
        chunk_index=info.chunk_index,
        period_ns=round(1e9 / rate_hz) if rate_hz else 0,
        inferred=info.inferred,
        surprised=info.surprised,
        surprise=info.surprise,
        surprise_joint=info.surprise_joint,
    )


def from_answer(answer: Answer, server: str = "") -> ActionChunk:
    """server: identity of the serving node that answers."""
    answered = answer.id
    message = ActionChunk(
        server=server,
        robot=answered.robot,
        session=answered.session,
        task=answered.task,
        round=answered.round,
        attempt=answered.attempt,
    )
    match answer.body:
        case Actions() as body:
            message.kind = ActionChunk.ACTIONS
            message.horizon, message.action_dim = body.actions.shape
            message.actions = _flat(body.actions)
            message.confidence = _flat(body.confidence)
            message.horizon_reason, message.reason = body.horizon_reason, body.reason
            message.chunk_size, message.batch_size = body.chunk_size, body.batch_size
            message.queued_s, message.compute_s = body.queued_ns / 1e9, body.compute_ns / 1e9
            message.server_s = body.server_ns / 1e9
            message.engine_latency_s = body.engine_latency_ns / 1e9
            message.request_period_s = body.request_period_ns / 1e9
            message.tier, message.engine, message.policy = body.tier, body.engine, body.policy
        case Refusal() as body:
            message.kind = ActionChunk.REFUSED
            message.refusal = int(body.code)
            message.reason = printable(body.reason, TEXT_BYTES // 2)
            message.retry_after_s = body.retry_after_ns / 1e9
        case _:
            message.kind = ActionChunk.REFETCH
    return message


def updates_message(
    answer: Answer, actions: Actions, whole: WholeChunk, *, full: bool
) -> ChunkUpdates:
    """The whole chunk behind `actions`; `full` with every sampler step's update."""
    chunk, updates = whole.chunk, whole.updates
    norms = np.linalg.norm(updates, axis=2)
    answered = answer.id
    return ChunkUpdates(
        robot=answered.robot,
        session=answered.session,
        task=answered.task,
        round=answered.round,
        attempt=answered.attempt,
        policy=actions.policy,
        horizon_policy=whole.horizon_policy,
        horizon=len(actions.actions),
        chunk_size=chunk.shape[0],
        action_dim=chunk.shape[1],
        steps=len(updates),
        chunk=_flat(chunk),
        action_scale=array("f", whole.scale or ()),
        step_norms=_flat(norms),
        updates=_flat(updates) if full else array("f"),
    )


def _flat(values: np.ndarray) -> array:
    """Row major. A generated setter takes an `array` as it is; of a NumPy array it checks and
    converts every element."""
    return array("f", np.ascontiguousarray(values, np.float32).tobytes())


def malformed(message: ChunkRequest, error: WireError) -> Answer:
    """The refusal of a request that could not even be read."""
    large = isinstance(error, TooLargeError)
    code = RefusalCode.TOO_LARGE if large else RefusalCode.MALFORMED
    robot, session, task = (
        text[:ID_BYTES] for text in (message.robot, message.session, message.task)
    )
    asked = RequestId(robot, session, task, message.round, message.attempt)
    return Answer(asked, Refusal(code, str(error)))
