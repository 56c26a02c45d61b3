"""Planned rates on a live fleet: 16 robots on two emulated engines, as planned and uncapped.

The planner makes the plan, from the profile that an emulated engine of pi05's size is assumed to
have. Both sides serve by it, with the same engines, routes and batches; uncapped robots are told no
rates. All are virtual robots with the robot node's own loop at 30 Hz, over DDS, and ask when half
of their chunk of 15 actions is left. Each side has a serving node of its own, one after the other,
the whole several times; shown are medians.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.report import Result, new_figure
from bench.support.servers import Kairos, environment
from bench.support.virtual_fleet import Measured, VirtualFleet
from bench.support.virtual_robot import robot_name
from kairos_ros.core.pipeline import Component
from kairos_ros.core.placement.served_plan import PlannedEngine, ServedPlan
from kairos_ros.lab.metrics.figure_style import BASELINE, INK, OURS
from kairos_ros.planning.assumed import assumed_profile
from kairos_ros.planning.planner import Planner
from kairos_ros.planning.workload import Cluster, Need, PlanOptions, RobotClass, Workload

LINE = "120+60b"
MAX_BATCH = 2
"""240 ms, 8 rounds per second at best."""
POLICY = f"emulated:latency_ms={LINE},chunk=50,dim=7,state=7"
MODEL = "pi"
ENGINES = 2
ROBOTS = 16
SLO_MS = 600.0
"""Two and a half full batches."""
NETWORK_S = 0.02
HORIZON = "static:15"
ACTION_S = 15 / 30
SIDES = ("uncapped", "planned rates")
SETTLE_S = 10.0
REPEATS = 3


def plan() -> ServedPlan:
    """Engines, routes and rates for the robots, as `kairos fleet plan` makes them."""
    profile = assumed_profile(
        MODEL, (Component.SYSTEM1,), "CPU slot", LINE, (1, MAX_BATCH), 0.0, spread=0.03
    )
    robots = tuple(robot_name(number) for number in range(ROBOTS))
    needs = {Component.SYSTEM1: Need(MODEL, SLO_MS / 1e3)}
    workload = Workload(
        (RobotClass("robots", robots, ACTION_S, needs),), {(MODEL, Component.SYSTEM1): profile}
    )
    options = PlanOptions(network_s=NETWORK_S)
    made = Planner(workload, Cluster(ENGINES, "CPU slot"), options).plan(explain=False)
    engines = tuple(
        PlannedEngine(one.gpu, "cpu", MODEL, one.batch, one.robots["robots"])
        for one in made.servers
    )
    periods = dict.fromkeys(robots, 1 / made.classes[0].requests_hz)
    return ServedPlan("bench", {MODEL: {"policy": POLICY}}, engines, periods)


def run(folder: Path, *, quick: bool) -> Result:
    planned = plan()
    served = {"uncapped": replace(planned, periods_s={}), "planned rates": planned}
    env, logs = environment(), folder / "logs"
    found: dict[str, list[Measured]] = {side: [] for side in SIDES}
    options = ("--policy", POLICY, "--horizon", HORIZON)
    with VirtualFleet(ROBOTS, logs, env, 8, *options) as robots:
        for repeat in range(1 if quick else REPEATS):
            for side in SIDES[:: 1 if repeat % 2 == 0 else -1]:
                server = Kairos(
                    logs / f"{repeat}_{side}", env, plan=served[side].text, scheduling="fifo"
                )
                with server:
                    one = _measure(robots, server, 6.0 if quick else 15.0)
                found[side].append(one)
                print(f"{side:13} p99 {one.round_trip_p99_ms:.0f} ms, ", end="")
                print(f"{100 * one.within_slo:.0f} % within the SLO", flush=True)
    return _result(found, planned)


def _measure(robots: VirtualFleet, server: Kairos, seconds: float) -> Measured:
    robots.start(ROBOTS)
    robots.measure(SETTLE_S, server.pids())
    measured = robots.measure(seconds, server.pids(), SLO_MS)
    totals = robots.stop()
    if wrong := sum(robot.wrong for robot in totals):
        raise RuntimeError(f"{wrong} wrong answers: another server was on the same ROS domain")
    return measured


def _result(found: dict[str, list[Measured]], planned: ServedPlan) -> Result:
    medians: dict[str, dict[str, float]] = {}
    for side, repeats in found.items():
        rows = [asdict(one) for one in repeats]
        for row in rows:
            row["qualified_actions_per_s"] = row["actions_per_s"] * row["within_slo"]
        medians[side] = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
    header = ["", "actions/s", f"within {SLO_MS:.0f} ms", "qualified actions/s", "p50 ms"]
    header += ["p99 ms", "rounds/s", "stalled %"]
    table = [
        [
            side,
            f"{m['actions_per_s']:.0f}",
            f"{100 * m['within_slo']:.1f} %",
            f"{m['qualified_actions_per_s']:.0f}",
            f"{m['round_trip_p50_ms']:.0f}",
            f"{m['round_trip_p99_ms']:.0f}",
            f"{m['chunks_per_s']:.1f}",
            f"{100 * m['stall_fraction']:.0f}",
        ]
        for side, m in medians.items()
    ]
    data: dict[str, Any] = {
        "slo_ms": SLO_MS,
        "plan": planned.text,
        "medians": medians,
        "runs": {side: [asdict(one) for one in repeats] for side, repeats in found.items()},
    }
    return Result(header, table, data, lambda path: _plot(path, medians))


def _plot(path: Path, medians: dict[str, dict[str, float]]) -> None:
    before, after = (medians[side]["qualified_actions_per_s"] for side in SIDES)
    title = f"Planned rates: {ROBOTS} robots, from {before:.0f} to {after:.0f} qualified actions/s"
    about = f"{ENGINES} emulated engines, 8 rounds/s each at best; the robot node's loop, over DDS"
    with new_figure(path, title, about, panels=2) as (trips, actions):
        for x, (side, colour) in enumerate(zip(SIDES, (BASELINE, OURS), strict=True)):
            m = medians[side]
            trips.bar(x - 0.2, m["round_trip_p50_ms"], 0.35, color=colour, alpha=0.5)
            trips.bar(x + 0.2, m["round_trip_p99_ms"], 0.35, color=colour)
            actions.bar(x - 0.2, m["actions_per_s"], 0.35, color=colour, alpha=0.5)
            actions.bar(x + 0.2, m["qualified_actions_per_s"], 0.35, color=colour)
        trips.axhline(SLO_MS, color=INK, lw=0.8, ls=":")
        trips.set(ylabel="time to an answer, p50 and p99 (ms)", ylim=(0, None))
        actions.set(ylabel="actions/s, all and qualified", ylim=(0, None))
        for panel in (trips, actions):
            panel.set_xticks(range(len(SIDES)), SIDES)
