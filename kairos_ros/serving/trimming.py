"""The return path: a whole chunk from the engine becomes the actions that a robot gets."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import PolicyError, RefusalCode
from kairos_ros.core.horizon import HorizonContext
from kairos_ros.serving.exchange import Actions, Refusal
from kairos_ros.serving.requests import Entry
from kairos_ros.transport.messages import EngineDescription, InferFailure, InferOutcome

RETRY_S = {RefusalCode.BAD_IMAGE: 0.1, RefusalCode.NOT_FINITE: 0.1, RefusalCode.ENGINE_FAILED: 0.5}
"""Failures that the next observation may not have; all others are not worth a retry."""


@dataclass(frozen=True, slots=True)
class Served:
    """How a request went through the server; see ActionChunk.msg."""

    queued_s: float
    compute_s: float
    server_s: float
    expected_s: float
    batch_size: int
    tier: str
    engine: str


def answer_outcome(
    entry: Entry,
    outcome: InferOutcome,
    policy: EngineDescription,
    served: Served,
    default_horizon: str,
) -> Actions | Refusal:
    """Trims the chunk by the request's horizon policy and notes it in the session."""
    if isinstance(outcome, InferFailure):
        return Refusal(outcome.code, outcome.reason, RETRY_S.get(outcome.code, 0.0))
    session, query = entry.session, entry.query
    context = HorizonContext(query.kind, query.round, tail(entry), scale(policy), query.instruction)
    try:
        horizon = entry.horizon(outcome.updates, outcome.chunk, context)
    except PolicyError as error:
        return Refusal(RefusalCode.BAD_HORIZON_POLICY, str(error))
    session.answered, session.last_chunk = (query.round, query.attempt), outcome.chunk
    session.horizon, session.horizon_reason = horizon.length, horizon.reason
    session.queued_s, session.reason = served.queued_s, entry.reason
    session.served_by = served.engine
    session.rounds_served += 1
    return Actions(
        actions=outcome.chunk[: horizon.length],
        confidence=horizon.confidence[: horizon.length],
        horizon_reason=horizon.reason,
        chunk_size=len(outcome.chunk),
        queued_s=served.queued_s,
        compute_s=served.compute_s,
        server_s=served.server_s,
        engine_latency_s=served.expected_s,
        batch_size=served.batch_size,
        tier=served.tier,
        engine=served.engine,
        policy=policy.policy_id,
        reason=entry.reason,
        whole=outcome,
        scale=policy.action_scale,
        horizon_policy=query.horizon or default_horizon,
    )


def tail(entry: Entry) -> NDArray[np.float32] | None:
    """What the previous chunk, executed or not, would do from the new observation on, [M, D]."""
    execution, session = entry.query.execution, entry.session
    if session.last_chunk is None or execution.round != session.answered[0]:
        return None
    return session.last_chunk[execution.chunk_index :]


def scale(policy: EngineDescription) -> NDArray[np.float32] | None:
    """Action units per normalised unit, [D], for thresholds of horizon policies."""
    return None if policy.action_scale is None else np.array(policy.action_scale, np.float32)
