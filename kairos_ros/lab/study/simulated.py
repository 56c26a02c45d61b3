"""Runs one cell: a workload's traces, a fleet, its engines, in virtual time; metrics of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from kairos_ros.core.execution.latency import lead_actions
from kairos_ros.core.profile import EngineProfile
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.lab.metrics.cells import Key
from kairos_ros.lab.sim.arrivals import trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.recorded import recorded
from kairos_ros.lab.sim.retrim import retrimmed
from kairos_ros.lab.sim.rules import RECORDED, Rules
from kairos_ros.lab.sim.sim_engine import SimEngine
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.lab.sim.workloads import STATIC_H, Workload, workload
from kairos_ros.lab.study.cell import Cell, Metrics
from kairos_ros.recording.runs.observation_age import observation_ages_s
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.recording.runs.trace import Trace
from kairos_ros.serving.engines.hedging import HEDGED
from kairos_ros.serving.options import SECOND_NS, ServingOptions

STALE_AFTER_NS = 50_000_000
PATIENCE_NS = 10**6 * SECOND_NS
"""Nobody gives up: no deadlines, no repeated requests, so that the queue alone is compared."""
CLOUD_SPEED = 0.5
"""Compute time of the cloud engine over the edge's, about an A100 against an A6000."""
EVERYTHING = 10_000
"""A lead longer than any chunk: the next request leaves as soon as a chunk begins."""
DRAWN = 200
"""Tasks of a synthetic workload, drawn anew for every seed; a cell takes each at most once."""


def run_settings(settings: Key) -> Metrics:
    """`run_cell` of a cell's settings, as they are kept."""
    return run_cell(Cell.model_validate(settings))


def run_cell(cell: Cell) -> Metrics:
    """Simulates the cell. Raises KairosError where its workload does not exist or does not fit."""
    return measured(run_fleet(cell))


def run_fleet(cell: Cell) -> FleetRun:
    """Everything that the cell's fleet does. Raises as `run_cell`."""
    offered = _offered(cell)
    rules = replace(offered.rules, timeout_ns=PATIENCE_NS, timeout_max_ns=PATIENCE_NS)
    online = cell.arrivals == "poisson"
    return simulate(
        trace_tasks(offered.traces, cell.seed, offered.rate if online else None, cell.tasks),
        FleetOptions(cell.tasks if online else cell.robots, rules),
        ServingOptions(
            scheduling=parse_scheduling(cell.scheduling_spec),
            horizon_policy=f"static:{STATIC_H}",  # requests name their own
            stale_after_ns=STALE_AFTER_NS if cell.refetch else 0,
            default_deadline_ns=PATIENCE_NS,
            max_queue=cell.tasks + cell.robots,
            comparison=cell.comparison,
            hedge_budget=cell.hedge_budget,
        ),
        _engines(cell, offered.profile),
        cell.seed,
    )


@dataclass(frozen=True, slots=True)
class _Offered:
    """The tasks of a cell as its robots live through them, and the edge engine."""

    traces: tuple[Trace, ...]
    rules: Rules
    rate: float
    """Tasks per second."""
    profile: EngineProfile


def _offered(cell: Cell) -> _Offered:
    if cell.workload == RECORDED:
        own = recorded(Path(cell.policy), cell.engine)
        traces, named, rate, profile = (
            own.of(cell.horizon),
            RECORDED,
            own.arrival_rate(cell.load),
            own.profile,
        )
    else:
        drawn = _drawn(cell.workload, cell.seed, max(DRAWN, cell.tasks), cell.rounds_ratio)
        traces, named = drawn.traces, drawn.static if cell.horizon == "static" else drawn.dynamic
        rate, profile = drawn.arrival_rate(cell.load), drawn.profile
    lead = _lead(cell, profile, traces[0])
    if cell.accounting == "replay":
        return _Offered(_asked(traces, named, lead), Rules("replay"), rate, profile)
    rules = Rules("observation", named, None if cell.lead == "expected" else lead)
    return _Offered(traces, rules, rate, profile)


def asking(trace: Trace, lead: int) -> Trace:
    """`trace` with every request `lead` actions before the running chunk ends, or at its start."""
    ends = [0, 0, *accumulate(r.executed for r in trace.rounds)]  # ends[j + 1]: before round j
    rounds = []
    for j, one in enumerate(trace.rounds):
        at = max(ends[j], ends[j + 1] - lead)
        rounds.append(replace(one, requested_at=at, observed_at=at))
    return replace(trace, rounds=tuple(rounds))


def with_cap(profile: EngineProfile, cap: int) -> EngineProfile:
    """The same engine with another largest batch, on the line through its first and last size."""
    sizes, seconds = profile.batch_sizes, profile.p50_s
    slope = (seconds[-1] - seconds[0]) / max(1, sizes[-1] - 1)
    line = tuple(seconds[0] + slope * (b - 1) for b in dict.fromkeys((1, cap)))
    return replace(
        profile, batch_sizes=tuple(dict.fromkeys((1, cap))), p10_s=line, p50_s=line, p90_s=line
    )


@lru_cache(maxsize=4)
def _drawn(name: str, seed: int, tasks: int, ratio: float | None) -> Workload:
    return workload(name, seed, tasks, ratio=ratio)


def _asked(traces: tuple[Trace, ...], named: str, lead: int) -> tuple[Trace, ...]:
    """Rounds as they would be recorded in isolation, asked for as the cell says."""
    if named != RECORDED:
        traces = tuple(retrimmed(t, Rules(horizon=named), lead, elapsed="kept") for t in traces)
    return tuple(asking(t, lead) for t in traces)


def _lead(cell: Cell, profile: EngineProfile, trace: Trace) -> int:
    """Actions left in the buffer when the next request leaves.

    A chunk whose actions are lost while it is under way must bring more than it loses: counted from
    the observation, the lead is at most half of static:10. It is that of an edge engine also
    where the cloud serves: tasks are recorded once (Dai et al. §5.1).
    """
    if cell.lead == "delivery":
        return EVERYTHING
    if isinstance(cell.lead, int):
        return cell.lead
    return lead_actions(
        round(FleetOptions(1).network_s * 1e9) + profile.latencies_ns(1)[0],
        Rules().margin_ns if cell.lead == "expected" else 0,
        round(1e9 / trace.control_rate_hz),
        STATIC_H if cell.accounting == "observation" else 2 * trace.chunk_size,
    )


def _engines(cell: Cell, profile: EngineProfile) -> list[SimEngine]:
    edge = profile if cell.batch_cap is None else with_cap(profile, cell.batch_cap)
    faster = tuple(CLOUD_SPEED * s for s in edge.p50_s)
    cloud = replace(edge, p10_s=faster, p50_s=faster, p90_s=faster)
    engines = {
        "edge": SimEngine("edge", edge, spread=cell.spread),
        "cloud": SimEngine(
            "cloud",
            cloud,
            "cloud",
            cell.wan_ms / 1e3,
            cell.wan_mbps,
            cell.pipelined,
            cell.wan_stalls,
            spread=cell.spread,
        ),
    }
    return list(engines.values()) if cell.placement == "hybrid" else [engines[cell.placement]]


def measured(run: FleetRun) -> Metrics:
    """Numbers of a run; NaN where it has no data."""
    summary = summarise(run)
    latency, chunks = summary.latency_s, summary.chunk_latency_s
    rounds = [r for r in run.rounds if r.executed]
    ages = observation_ages_s(run.rounds)
    busy_s = sum(task.ended_s - task.given_s for task in run.tasks)
    return {
        "tasks": summary.tasks,
        "success": _number(summary.success),
        "latency_mean_s": latency.mean if latency else math.nan,
        "latency_p25_s": latency.p25 if latency else math.nan,
        "latency_p50_s": latency.p50 if latency else math.nan,
        "latency_p95_s": latency.p95 if latency else math.nan,
        "stall_fraction": _number(summary.stall_fraction),
        "mid_task_stall_fraction": _number(summary.mid_task_stall_fraction),
        "mean_horizon": _number(summary.mean_horizon),
        "rounds_per_task": _number(summary.rounds_per_task),
        "chunk_latency_mean_s": chunks.mean if chunks else math.nan,
        "observation_age_s": float(ages.mean()) if len(ages) else math.nan,
        "observations_per_round": _mean([r.attempts for r in run.rounds]),
        "batch_mean": _mean([r.batch_size for r in rounds]),
        "cloud_fraction": _mean([r.tier == "cloud" for r in rounds]),
        "hedged_fraction": _mean([HEDGED in r.reason for r in rounds]),
        "actions": summary.actions,
        "busy_robots_mean": busy_s / run.length_s,
        "last_arrival_s": max(task.wanted_s for task in run.tasks),
        "length_s": run.length_s,
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
