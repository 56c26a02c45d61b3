"""The return path: a whole chunk from the engine becomes the actions that a robot gets."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import PolicyError, RefusalCode
from kairos_ros.core.exchange import Actions, Refusal, WholeChunk
from kairos_ros.core.horizons.policies import Horizon, HorizonContext, after_surprise, decide
from kairos_ros.serving.request_queue import PendingRequest
from kairos_ros.transport.messages import EngineDescription, InferFailure, InferOutcome

RETRY_NS = {
    RefusalCode.BAD_IMAGE: 100_000_000,
    RefusalCode.NOT_FINITE: 100_000_000,
    RefusalCode.ENGINE_FAILED: 500_000_000,
}
"""Failures that the next observation may not have; all others are not worth a retry."""


@dataclass(frozen=True, slots=True)
class Served:
    """How a request went through the server; see ActionChunk.msg."""

    queued_ns: int
    compute_ns: int
    server_ns: int
    expected_ns: int
    batch_size: int
    tier: str
    engine: str
    request_period_ns: int = 0
    horizon_floor: int = 0
    """Actions to execute at least, as far as the chunk goes."""
    surprised_horizon: int = 0
    """Actions to execute at most of a chunk that a surprised arm asked for; 0: no limit."""


def answer_outcome(
    entry: PendingRequest,
    outcome: InferOutcome,
    policy: EngineDescription,
    served: Served,
    horizon_name: str,
) -> Actions | Refusal:
    """Trims the chunk by the request's horizon policy, which `horizon_name` names, and notes it in
    the session."""
    if isinstance(outcome, InferFailure):
        return Refusal(outcome.code, outcome.reason, RETRY_NS.get(outcome.code, 0))
    session, request = entry.session, entry.request
    if outcome.begun_anew:
        entry.reason += f"; the policy's state is begun anew: {outcome.begun_anew}"
    context = HorizonContext(
        request.kind,
        request.id.round,
        tail(entry),
        scale(policy),
        request.instruction,
        cut=len(outcome.chunk) < policy.chunk_size,
        task_id=f"{request.id.robot} {request.id.session} {request.id.task}",
        state=request.observation.state,
        lead=session.lead,
        surprised=request.execution.surprised,
    )
    try:
        horizon = decide(
            entry.horizon_policy, horizon_name, outcome.updates, outcome.chunk, context
        )
    except PolicyError as error:
        return Refusal(RefusalCode.BAD_HORIZON_POLICY, str(error))
    session.allowed = horizon.length
    horizon = _at_least(served.horizon_floor, horizon, len(outcome.chunk))
    horizon = after_surprise(horizon, served.surprised_horizon, context)
    session.answered, session.last_chunk = (request.id.round, request.id.attempt), outcome.chunk
    session.horizon, session.horizon_reason = horizon.length, horizon.reason
    session.queued_s, session.reason = served.queued_ns / 1e9, entry.reason
    session.served_by = served.engine
    session.rounds_served += 1
    return Actions(
        actions=outcome.chunk[: horizon.length],
        confidence=horizon.confidence[: horizon.length],
        horizon_reason=horizon.reason,
        chunk_size=len(outcome.chunk),
        queued_ns=served.queued_ns,
        compute_ns=served.compute_ns,
        server_ns=served.server_ns,
        engine_latency_ns=served.expected_ns,
        batch_size=served.batch_size,
        tier=served.tier,
        engine=served.engine,
        policy=policy.policy_id,
        reason=entry.reason,
        request_period_ns=served.request_period_ns,
        whole=WholeChunk(
            outcome.chunk,
            outcome.updates,
            policy.action_scale,
            horizon_name,
        ),
    )


def _at_least(floor: int, horizon: Horizon, chunk: int) -> Horizon:
    """The horizon, or the floor where that is longer and the chunk has so much."""
    length = min(floor, chunk)
    if length <= horizon.length:
        return horizon
    why = f"{horizon.reason}; {length} for the most successes at this load"
    return replace(horizon, length=length, reason=why)


def tail(entry: PendingRequest) -> NDArray[np.float32] | None:
    """What the previous chunk, executed or not, would do from the new observation on, [M, D]."""
    execution, session = entry.request.execution, entry.session
    if session.last_chunk is None or execution.round != session.answered[0]:
        return None
    return session.last_chunk[execution.chunk_index :]


def scale(policy: EngineDescription) -> NDArray[np.float32] | None:
    """Action units per normalised unit, [D], for thresholds of horizon policies."""
    return None if policy.action_scale is None else np.array(policy.action_scale, np.float32)
