"""The answer that an ActionChunk holds: the one decoder of it, for robots and for listeners."""

from typing import Any

import numpy as np

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.core.exchange import Actions, Answer, Refetch, Refusal, RequestId
from kairos_ros.core.wire_check import TEXT_BYTES, duration_ns, printable


def answer_of(body: Any) -> Answer:
    """Of an ActionChunk, live or of a bag, which is known by its fields.

    Actions whose count contradicts the sizes in the message come out as none, [0, action_dim].
    Raises WireError for an unknown kind, and for durations that are negative, absurd or not finite.
    """
    retry_after_ns = duration_ns("retry_after_s", body.retry_after_s)
    reason = printable(body.reason, TEXT_BYTES)
    told: Actions | Refusal | Refetch
    match body.kind:  # as in ActionChunk.msg
        case 0:
            told = _actions(body, reason)
        case 1:
            known = body.refusal in list(RefusalCode)  # else of a newer serving node
            code = RefusalCode(body.refusal) if known else RefusalCode.NONE
            told = Refusal(code, reason, retry_after_ns)
        case 2:
            told = Refetch()
        case kind:
            raise WireError(f"answer kind {kind} is unknown; update one of the peers")
    answered = RequestId(body.robot, body.session, body.task, body.round, body.attempt)
    return Answer(answered, told, getattr(body, "server", ""))


def _actions(body: Any, reason: str) -> Actions:
    actions = np.asarray(body.actions, np.float32)
    length, dim = body.horizon, body.action_dim
    if len(actions) != length * dim:
        actions, length = np.zeros(0, np.float32), 0
    return Actions(
        actions=actions.reshape(length, dim),
        confidence=np.asarray(body.confidence, np.float32),
        horizon_reason=body.horizon_reason,
        chunk_size=body.chunk_size,
        queued_ns=duration_ns("queued_s", body.queued_s),
        compute_ns=duration_ns("compute_s", body.compute_s),
        server_ns=duration_ns("server_s", body.server_s),
        engine_latency_ns=duration_ns(
            "engine_latency_s",
            getattr(body, "engine_latency_s", 0.0),  # older bags lack it
        ),
        batch_size=body.batch_size,
        tier=body.tier,
        engine=body.engine,
        policy=body.policy,
        reason=reason,
        request_period_ns=duration_ns(
            "request_period_s",
            getattr(body, "request_period_s", 0.0),  # older bags lack it
        ),
    )
