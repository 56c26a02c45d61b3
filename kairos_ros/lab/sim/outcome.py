"""What a policy answers in a replay: the chunk and updates that were recorded."""

import numpy as np

from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.horizons.calibration import Calibrated, TunedStatic
from kairos_ros.core.horizons.policies import HorizonContext, HorizonPolicy, Static
from kairos_ros.lab.sim.rules import RECORDED, Rules
from kairos_ros.recording.runs.trace import Trace, TraceRound
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


BLIND = (Static, Calibrated, TunedStatic)
"""Horizon policies that read neither chunk nor updates."""


def require_judgeable(trace: Trace, rules: Rules) -> None:
    """Raises ConfigError where the trace has not recorded what the rules' horizon policy judges by,
    and where that was calibrated for another policy."""
    if rules.horizon == RECORDED:
        return
    policy = rules.policy()
    if rules.calibration and isinstance(policy, Calibrated | TunedStatic):
        rules.calibration.require_policy(trace.policy)
    for recorded in trace.rounds:
        if recorded.chunk is None and not isinstance(policy, BLIND):
            raise ConfigError(
                f"trace {trace.name!r} holds no chunk of round {recorded.round}, which "
                f"{rules.horizon!r} needs; record with chunk updates, or use the recorded horizon "
                "or static:H"
            )
        _judge(trace, recorded, policy)


def _judge(trace: Trace, recorded: TraceRound, policy: HorizonPolicy) -> None:
    result = recorded_result(trace, recorded, 0)
    try:
        context = HorizonContext(trace.kind, scale=trace.scale, instruction=trace.instruction)
        policy(result.updates, result.chunk, context)
    except PolicyError as error:
        raise ConfigError(f"trace {trace.name!r}, round {recorded.round}: {error}") from None
