"""`kairos study rate`: successful tasks per hour against load, with the serving node's dispatcher.

A virtual robot executes as many actions per task as the calibration's reference took, whatever the
horizon. A round succeeds as often as the calibration's static horizon of that length did, and a
task as often as its rounds on average: successes are expected values, not drawn. Finished cells are
kept in `cells.jsonl`; then `cells.csv`, `figure.png` and `finding.md` are written from them.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.execution.latency import lead_actions
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.core.horizons.load_horizon import HorizonCurve, horizon_curves
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.document.faults import read_document, read_model
from kairos_ros.engine.policies.calibration_file import find_calibration
from kairos_ros.host.share import share
from kairos_ros.lab.metrics.cells import Key
from kairos_ros.lab.sim.arrivals import trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.sim_engine import SimEngine, capacity_per_s, linear_profile
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.trace import Trace, TraceRound
from kairos_ros.serving.options import ServingOptions

RATE_HZ = 30.0
DECIDES = (
    "core", "serving", "transport/messages.py", "lab/sim", "lab/rates/study.py",
)  # fmt: skip


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class System(_Section):
    """One way to serve."""

    name: str
    horizon: str
    rate_control: bool = False
    load_horizon: bool = False


class StudySize(_Section):
    """How much of it is run."""

    seeds: Annotated[int, Field(ge=1, le=100)]
    seconds: Annotated[float, Field(ge=1, le=3600)]
    loads: list[Annotated[float, Field(gt=0)]] = []


class RateStudy(_Section):
    """The content of the study file."""

    kind: Literal["rate"]
    question: str
    policy: str
    engine: str
    batch_cap: Annotated[int, Field(ge=1)]
    loads: Annotated[list[Annotated[float, Field(gt=0, le=20)]], Field(min_length=1)]
    systems: Annotated[list[System], Field(min_length=1)]
    network_ms: Annotated[float, Field(ge=0)] = 5.0
    warm_up_s: Annotated[float, Field(ge=0)] = 20.0
    sizes: dict[Literal["quick", "full"], StudySize]


def read_rate_study(path: Path) -> RateStudy:
    """Raises FaultyFileError with the place of everything that is wrong."""
    return read_model(path, read_document(path), RateStudy)


def cells(study: RateStudy, size: Literal["quick", "full"]) -> list[Key]:
    """All that is run."""
    options = study.sizes[size]
    return [
        {
            "system": system.model_dump(), "load": load, "policy": study.policy,
            "engine": study.engine, "batch_cap": study.batch_cap, "network_ms": study.network_ms,
            "warm_up_s": study.warm_up_s, "seconds": options.seconds, "seed": seed,
        }
        for seed in range(options.seeds)
        for load in options.loads or study.loads
        for system in study.systems
    ]  # fmt: skip


def run_cell(key: Key) -> dict[str, Any]:
    """One fleet, served in one way."""
    calibration = _calibration(key["policy"])
    curves = horizon_curves(calibration)
    network_s = key["network_ms"] / 1e3
    profile = linear_profile(key["engine"], key["batch_cap"], policy_id=calibration.policy_id)
    asked_hz = tuned_demand_hz(calibration, profile.latency_s(1) + network_s)
    robots = max(1, round(key["load"] * capacity_per_s(profile) / asked_hz))
    system, closes_s = key["system"], key["warm_up_s"] + key["seconds"]
    traces = [_trace(names, calibration, curves) for names in _kinds(calibration)]
    run = simulate(
        trace_tasks(traces, key["seed"], None, None),
        FleetOptions(
            robots,
            Rules(horizon=system["horizon"], calibration=calibration),
            network_s=network_s,
            open_s=closes_s,
        ),
        ServingOptions(
            parse_scheduling("fifo"),
            "static:10",
            rate_control=system["rate_control"],
            load_horizon=system["load_horizon"],
            calibration=calibration,
        ),
        [SimEngine("edge", profile)],
        key["seed"],
    )  # fmt: skip
    return {"robots": robots, **_metrics(run, curves, key["warm_up_s"], closes_s)}


def tuned_demand_hz(calibration: HorizonCalibration, answer_s: float) -> float:
    """Rounds per second that a robot asks for with its tasks' tuned horizons where it never waits,
    tasks of all kinds being equally many. answer_s: from a request to its answer without load."""
    assert calibration.static is not None
    curves, rules = horizon_curves(calibration), Rules()
    rounds = actions = 0.0
    for names, horizon in calibration.static.tasks.items():
        lead = lead_actions(round(answer_s * 1e9), rules.margin_ns, round(1e9 / RATE_HZ), horizon)
        actions += curves[names[0]].actions
        rounds += curves[names[0]].actions / (horizon - lead)
    return RATE_HZ * rounds / actions


@cache
def _calibration(policy: str) -> HorizonCalibration:
    found = find_calibration(str(share() / policy))
    if found is None:
        raise ConfigError(f"{policy} has no horizon calibration; run 'kairos calibrate {policy}'")
    return found


def _kinds(calibration: HorizonCalibration) -> list[tuple[str, ...]]:
    assert calibration.static is not None
    return list(calibration.static.tasks)


def _trace(
    names: tuple[str, ...], calibration: HorizonCalibration, curves: Mapping[str, HorizonCurve]
) -> Trace:
    """A task of so many actions, without chunks: nothing judges by them."""
    actions = round(curves[names[0]].actions)
    return Trace(
        name=names[0],
        kind=names[0],
        instruction=names[-1],
        seed=0,
        control_rate_hz=RATE_HZ,
        chunk_size=calibration.chunk_size,
        action_dim=1,
        policy=calibration.policy_id,
        horizon_policy="static:10",
        success=True,
        duration_s=actions / RATE_HZ,
        rounds=(TraceRound(1, 0, 0, 10, actions),),
    )


def _metrics(
    run: FleetRun, curves: Mapping[str, HorizonCurve], from_s: float, to_s: float
) -> dict[str, float]:
    """Of what ended, and was answered, in this time."""
    of_task = defaultdict(list)
    for one in run.rounds:
        if one.executed:
            of_task[one.robot, one.task].append(one)
    succeeded = []
    for task in run.tasks:
        done = of_task[task.robot, task.task]
        if from_s <= task.ended_s < to_s and task.success and done:
            chances = [curves[task.scene].success_at(one.horizon) for one in done]
            succeeded.append(float(np.average(chances, weights=[one.executed for one in done])))
    rounds = [one for one in run.rounds if from_s <= one.answered_s < to_s and one.horizon]
    latency_s = [one.latency_s for one in rounds]
    return {
        "successes_per_h": sum(succeeded) * 3600 / (to_s - from_s),
        "tasks_per_h": len(succeeded) * 3600 / (to_s - from_s),
        "success": fmean(succeeded) if succeeded else 0.0,
        "horizon": fmean(one.horizon for one in rounds) if rounds else 0.0,
        "rounds_per_s": len(rounds) / (to_s - from_s),
        "latency_p50_s": float(np.percentile(latency_s, 50)) if rounds else 0.0,
        "latency_p99_s": float(np.percentile(latency_s, 99)) if rounds else 0.0,
    }
