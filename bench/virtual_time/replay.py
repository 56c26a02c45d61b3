"""Does virtual time tell the truth? The same tasks replayed in real time and simulated, and what a
replay with fifty robots costs.

The recorded sample of Meta-World tasks on an engine of known latency, small enough to be contended
for. Jobs, seeds, profile and rules are the same on both sides; the network is the measured one.
"""

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.report import Result, new_figure
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.host.share import share
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS
from kairos_ros.lab.sim.arrivals import trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.rules import Accounting, Rules
from kairos_ros.lab.sim.sim_engine import SimEngine, linear_profile
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_files import load_run
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.recording.runs.trace_file import read_traces
from kairos_ros.serving.options import ServingOptions

KAIROS = Path(sys.prefix, "bin", "kairos")
TRACES = share() / "config" / "traces" / "metaworld_sample.jsonl.gz"
HORIZON = "static:10"
LEAD = 3
LATENCY, BATCH = "80+20b", 2
SEED = 5


@dataclass(frozen=True, slots=True)
class Condition:
    robots: int
    accounting: Accounting = "replay"
    scheduling: str = "wait_ratio"

    @property
    def rules(self) -> Rules:
        lead = LEAD if self.accounting == "replay" else None
        return Rules(accounting=self.accounting, horizon=HORIZON, lead=lead)


CONDITIONS = (
    *(Condition(robots) for robots in (1, 2, 4, 6, 8)),
    *(Condition(robots, "observation") for robots in (2, 4, 6, 8)),
    Condition(6, scheduling="fifo"),
    Condition(6, "observation", scheduling="fifo"),
)
FLEET = ("--robots", "50", "--policy", "emulated:latency_ms=20+2b")
FLEETS = (("--rate", "2"), ("--rate", "8"), ())
"""Arrivals of the fifty robots: online, and back to back."""


def run(folder: Path, *, quick: bool) -> Result:
    rows, data = [], []
    for i, condition in enumerate(CONDITIONS[1::3] if quick else CONDITIONS):
        tasks = 3 * condition.robots
        options: list[Any] = ["--robots", condition.robots, "--accounting", condition.accounting]
        options += ["--horizon", HORIZON, "--scheduling", condition.scheduling, "--seed", SEED]
        options += ["--policy", f"emulated:latency_ms={LATENCY}", "--max-batch", BATCH]
        if condition.rules.lead is not None:
            options += ["--lead", condition.rules.lead]
        real, configuration = _replay(folder / str(i), [*options, "--tasks", tasks])
        virtual = _simulate(condition, tasks, _network_s(real))
        point = _compared(condition, real, virtual, configuration)
        data.append(point)
        rows.append(
            [
                f"{condition.robots}",
                condition.accounting,
                condition.scheduling,
                f"{point['real_s']:.2f}",
                f"{point['virtual_s']:.2f}",
                f"{100 * (point['virtual_s'] / point['real_s'] - 1):+.1f}",
                f"{1e3 * point['real_queued_s']:.0f}",
                f"{1e3 * point['virtual_queued_s']:.0f}",
                f"{point['late_p99_ms']:.1f}",
                "",
            ]
        )
    for arrivals in FLEETS:
        options = [*FLEET, *arrivals, "--tasks", 60 if "2" in arrivals else 250]
        real, configuration = _replay(folder / "_".join(["fifty", *arrivals]), options)
        side = configuration["robots_side"]
        per_s, cpu = side["requests"] / real.length_s, side["cpu_s"] / real.length_s
        data.append({"arrivals": arrivals, "requests_per_s": per_s, "cpu": cpu, **side})
        average_s = summarise(real).latency_s
        assert average_s is not None
        row = ["50", "replay", " ".join(arrivals) or "back to back", f"{average_s.mean:.2f}"]
        row += ["", "", "", "", f"{side['late_p99_ms']:.1f}"]
        rows.append([*row, f"{per_s:.0f} requests/s, {100 * cpu:.0f} % of a core"])
    header = ["robots", "accounting", "scheduling", "real s", "virtual s", "%", "queued ms"]
    header += ["virtual", "late p99 ms", "robots' side"]
    return Result(header, rows, {"conditions": data}, lambda path: _plot(path, data))


def _replay(folder: Path, options: list[Any]) -> tuple[FleetRun, dict[str, Any]]:
    """Raises RuntimeError with what it said when it fails."""
    own = {key: value for key, value in os.environ.items() if key != "ROS_DOMAIN_ID"}
    command = [KAIROS, "replay", TRACES, "--out", folder, *options]
    line = list(map(str, command))
    done = subprocess.run(line, env=own, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kairos replay failed:\n{done.stdout}{done.stderr}")
    return load_run(folder)


def _simulate(condition: Condition, tasks: int, network_s: float) -> FleetRun:
    return simulate(
        trace_tasks(read_traces(TRACES), SEED, None, tasks),
        FleetOptions(condition.robots, condition.rules, network_s),
        ServingOptions(parse_scheduling(condition.scheduling), HORIZON, batch_cap=BATCH),
        [SimEngine("edge", linear_profile(LATENCY, BATCH))],
        SEED,
    )


def _network_s(run: FleetRun) -> float:
    """Median of what a round trip took besides the server's share."""
    alone = [r.latency_s - r.server_s for r in run.rounds if r.horizon and r.attempts == 1]
    return float(np.median(alone))


def _compared(
    condition: Condition, real: FleetRun, virtual: FleetRun, configuration: dict[str, Any]
) -> dict[str, Any]:
    point: dict[str, Any] = {
        "robots": condition.robots,
        "accounting": condition.accounting,
        "scheduling": condition.scheduling,
        "network_s": _network_s(real),
        "late_p99_ms": configuration["robots_side"]["late_p99_ms"],
    }
    for name, run in (("real", real), ("virtual", virtual)):
        latency = summarise(run).latency_s
        assert latency is not None
        point[f"{name}_s"] = latency.mean
        queued = [r.queued_s for r in run.rounds if r.horizon]
        point[f"{name}_queued_s"] = float(np.mean(queued))
    return point


def _plot(path: Path, data: list[dict[str, Any]]) -> None:
    points = [p for p in data if "virtual_s" in p]
    worst = max(abs(p["virtual_s"] / p["real_s"] - 1) for p in points)
    title = f"Virtual time tells the average task latency within {math.ceil(100 * worst)} %"
    about = f"emulated engine, {LATENCY} ms, batches up to {BATCH}; tasks back to back, {HORIZON}"
    with new_figure(path, title, about, panels=2) as axes:
        for axis, accounting in zip(axes, ("replay", "observation"), strict=True):
            shown = [
                p
                for p in points
                if (p["accounting"], p["scheduling"]) == (accounting, "wait_ratio")
            ]
            robots = [p["robots"] for p in shown]
            virtual, real = ([p[f"{name}_s"] for p in shown] for name in ("virtual", "real"))
            axis.plot(robots, virtual, color=BASELINE, label="virtual time")
            axis.plot(robots, real, "o", color=OURS, label="real time, over DDS")
            axis.set(xlabel=f"robots (accounting: {accounting})", xticks=robots)
            axis.set(ylabel="average task latency (s)", ylim=(0, 1.1 * max(real + virtual)))
            axis.legend(frameon=False, loc="lower left")
