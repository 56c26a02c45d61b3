"""The rounds that a recorded task would have had, alone, under another horizon policy."""

from dataclasses import replace
from typing import Literal

from kairos_ros.core.execution.latency import lead_actions
from kairos_ros.core.horizons.policies import HorizonContext
from kairos_ros.lab.sim.outcome import recorded_result, require_judgeable
from kairos_ros.lab.sim.rules import RECORDED, Rules
from kairos_ros.recording.runs.trace import Trace, TraceRound


def as_replayed(trace: Trace, rules: Rules, expected_ns: int) -> Trace:
    """The trace as a replay under `rules` repeats it; as it is where no horizon is judged again.

    expected_ns: from a request to its answer in a fleet without load, for rules without a lead.
    Raises ConfigError as `retrimmed`.
    """
    if rules.accounting != "replay" or rules.horizon == RECORDED:
        return trace
    lead = rules.lead
    if lead is None:
        period_ns = round(1e9 / trace.control_rate_hz)
        lead = lead_actions(expected_ns, rules.margin_ns, period_ns, 2 * trace.chunk_size)
    return retrimmed(trace, rules, lead, elapsed="kept")


def retrimmed(
    trace: Trace, rules: Rules, lead: int, elapsed: Literal["lost", "kept"] = "lost"
) -> Trace:
    """`trace` as if recorded alone under the rules' horizon policy, as long in actions as it was.

    Every round is requested with `lead` actions left in the buffer (at most half its horizon), and
    its chunk, the newest one recorded up to there, arrives just as the buffer runs out. elapsed:
    whether those actions are lost from the round, as on the robot node, or not, so that a round
    executes its whole horizon, as Dai et al. replay it. The denser the trace was recorded, the more
    faithful. Raises ConfigError where it lacks what the policy judges by.
    """
    require_judgeable(trace, rules)
    policy = rules.policy()
    rounds: list[TraceRound] = []
    total, executed, observed_at = trace.actions, 0, 0
    before, longest = None, 0
    while executed < total:
        source = trace.round_at(observed_at)
        result = recorded_result(trace, source, max(0, observed_at - source.observed_at))
        tail = before[1][observed_at - before[0] :] if before else None
        context = HorizonContext(
            trace.kind, len(rounds) + 1, tail, trace.scale, trace.instruction, lead=longest
        )
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
        left = min(lead, length // 2, new)
        observed_at, longest = executed - left, max(longest, left)
    return replace(
        trace,
        horizon_policy=rules.horizon,
        rounds=tuple(rounds),
        duration_s=total / trace.control_rate_hz,
    )
