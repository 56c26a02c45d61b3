"""What a policy answers in a replay: the chunk and updates that were recorded."""

import numpy as np

from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.horizon import HorizonContext, HorizonPolicy, Static, parse_horizon
from kairos_ros.evaluation.replay.rules import RECORDED
from kairos_ros.evaluation.trace import Trace, TraceRound
from kairos_ros.transport.messages import InferResult


def recorded_result(trace: Trace, observed: TraceRound, ahead: int) -> InferResult:
    """The recorded chunk, brought forward to an observation `ahead` actions later.

    The chunk's first `ahead` actions are cut off and its last one is repeated, so that it lines up
    with the tail of the chunk before. The updates stay as they are: how sure a sampler is depends
    on the distance from the observation. Lengths of steps serve as updates of one dimension.
    """
    chunk, updates = observed.chunk, observed.updates
    if chunk is None:
        chunk = np.zeros((trace.chunk_size, trace.action_dim), np.float32)
    elif ahead:
        last = np.repeat(chunk[-1:], min(ahead, len(chunk)), axis=0)
        chunk = np.concatenate([chunk[ahead:], last])
    if updates is None:
        norms = observed.step_norms
        updates = (
            np.zeros((1, trace.chunk_size, 1), np.float32) if norms is None else norms[..., None]
        )
    return InferResult(chunk, updates)


def require_judgeable(trace: Trace, horizon: str) -> None:
    """Raises ConfigError where the trace has not recorded what this horizon policy judges by."""
    if horizon == RECORDED:
        return
    policy = parse_horizon(horizon)
    for recorded in trace.rounds:
        if recorded.chunk is None and not isinstance(policy, Static):
            raise ConfigError(
                f"trace {trace.name!r} holds no chunk of round {recorded.round}, which {horizon!r} "
                "needs; record with chunk updates, or use the recorded horizon or static:H"
            )
        _judge(trace, recorded, policy)


def _judge(trace: Trace, recorded: TraceRound, policy: HorizonPolicy) -> None:
    result = recorded_result(trace, recorded, 0)
    try:
        policy(result.updates, result.chunk, HorizonContext(trace.kind, scale=trace.scale))
    except PolicyError as error:
        raise ConfigError(f"trace {trace.name!r}, round {recorded.round}: {error}") from None
