"""The serving node's answers, from messages back to plain data."""

import math

import numpy as np

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.msg import ActionChunk
from kairos_ros.serving.exchange import Actions, Answer, Refetch, Refusal
from kairos_ros.transport.messages import InferResult

_DURATIONS = ("retry_after_s", "queued_s", "compute_s", "server_s", "engine_latency_s")


def to_answer(message: ActionChunk) -> Answer:
    """The inverse of `serving_messages.from_answer`, but for the whole chunk, which stays there.

    Raises WireError for a message that contradicts itself.
    """
    for name in _DURATIONS:
        seconds = getattr(message, name)
        if not (math.isfinite(seconds) and seconds >= 0):
            raise WireError(f"{name} is {seconds}; a duration is finite and not negative")
    return Answer(
        message.robot,
        message.session,
        message.task,
        message.round,
        message.attempt,
        _body(message),
    )


def _body(message: ActionChunk) -> Actions | Refusal | Refetch:
    match message.kind:
        case ActionChunk.ACTIONS:
            return _actions(message)
        case ActionChunk.REFUSED:
            try:
                code = RefusalCode(message.refusal)
            except ValueError:
                code = RefusalCode.NONE  # of a newer serving node; its reason is in words
            return Refusal(code, message.reason, message.retry_after_s)
        case ActionChunk.REFETCH:
            return Refetch()
    raise WireError(f"answer kind {message.kind} is unknown; update one of the peers")


def _actions(message: ActionChunk) -> Actions:
    shape = (message.horizon, message.action_dim)
    values = np.asarray(message.actions, np.float32)
    if values.size != message.horizon * message.action_dim or not np.isfinite(values).all():
        raise WireError(f"{values.size} actions that are not {shape} finite numbers")
    actions = values.reshape(shape)
    return Actions(
        actions=actions,
        confidence=np.asarray(message.confidence, np.float32),
        horizon_reason=message.horizon_reason,
        chunk_size=message.chunk_size,
        queued_s=message.queued_s,
        compute_s=message.compute_s,
        server_s=message.server_s,
        engine_latency_s=message.engine_latency_s,
        batch_size=message.batch_size,
        tier=message.tier,
        engine=message.engine,
        policy=message.policy,
        reason=message.reason,
        whole=InferResult(actions, np.zeros((0, *shape), np.float32)),
        scale=None,
        horizon_policy="",
    )
