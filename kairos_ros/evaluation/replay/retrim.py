"""The rounds that a recorded task would have had, alone, under another horizon policy."""

from dataclasses import replace
from typing import Literal

from kairos_ros.core.horizon import HorizonContext, parse_horizon
from kairos_ros.evaluation.replay.outcome import recorded_result, require_judgeable
from kairos_ros.evaluation.trace import Trace, TraceRound


def retrimmed(
    trace: Trace, horizon: str, lead: int, elapsed: Literal["lost", "kept"] = "lost"
) -> Trace:
    """`trace` as if recorded in isolation under `horizon`, as long in actions as it was.

    Every round is requested with `lead` actions left in the buffer (at most half its horizon), and
    its chunk, the newest one recorded up to there, arrives just as the buffer runs out. elapsed:
    whether those actions are lost from the round, as on the robot node, or not, so that a round
    executes its whole horizon, as 000 replays it. The denser the trace was recorded, the more
    faithful. Raises ConfigError where it lacks what the policy judges by.
    """
    require_judgeable(trace, horizon)
    policy = parse_horizon(horizon)
    rounds: list[TraceRound] = []
    total, executed, observed_at = trace.actions, 0, 0
    before = None
    while executed < total:
        source = trace.round_at(observed_at)
        result = recorded_result(trace, source, max(0, observed_at - source.observed_at))
        tail = before[1][observed_at - before[0] :] if before else None
        context = HorizonContext(trace.kind, len(rounds) + 1, tail, trace.scale)
        length = policy(result.updates, result.chunk, context).length
        before = (observed_at, result.chunk)
        new = length if elapsed == "kept" else length - (executed - observed_at)
        new = max(0, min(new, total - executed))
        rounds.append(
            replace(
                source,
                round=len(rounds) + 1,
                requested_at=observed_at,
                observed_at=observed_at,
                horizon=length,
                executed=new,
                chunk=result.chunk if source.chunk is not None else None,
            )
        )
        executed += new
        observed_at = executed - min(lead, length // 2, new)
    return replace(
        trace,
        horizon_policy=horizon,
        rounds=tuple(rounds),
        duration_s=total / trace.control_rate_hz,
    )
