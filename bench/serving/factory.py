"""A planned fleet live: 16 robots on four emulated GPUs, shared out by the planner and equally.

The workload is P2 of Rosa with all times three times as long, so that the requests of 16 robots do
not fill two cores: System 1 (GR00T-N1.6-3B) and a monitor, by the profiles that are assumed of
them. The planner and the baseline share four GPUs out, as in `kairos study factory`. System 1 runs
live: an emulated engine per GPU that it was given, and virtual robots with the robot node's own
loop at 30 Hz, over DDS. The monitor has its GPUs and is not asked. Beside it stands what the study
finds in virtual time for the same shares. Sides run one after the other, the whole several times;
shown are medians.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.report import Result, new_figure
from bench.support.servers import Kairos, environment
from bench.support.virtual_fleet import Measured, VirtualFleet
from bench.support.virtual_robot import robot_name
from kairos_ros.core.pipeline import Component
from kairos_ros.core.placement.served_plan import PlannedEngine, ServedPlan
from kairos_ros.lab.factory.allocation import SYSTEMS, Allocation, System, allocate
from kairos_ros.lab.factory.virtual_fleet import live
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS
from kairos_ros.planning.assumed import assumed_profile
from kairos_ros.planning.workload import Cluster, Need, PlanOptions, RobotClass, Workload

SLOWER = 3
LINE = f"{31.3 * SLOWER:g}+{9.7 * SLOWER:g}b"
MONITOR_LINE = f"{150 * SLOWER}+{20 * SLOWER}b"
POLICY = f"emulated:latency_ms={LINE},chunk=50,dim=7,state=7"
MODEL, JUDGE = "gr00t", "monitor"
GPUS, ROBOTS = 4, 16
ACTION_S = 0.2 * SLOWER
SLO_MS = 200.0 * SLOWER
NETWORK_S = 0.005 * SLOWER
ACTIONS = round(30 * ACTION_S)
"""Of the control rate in one action of the workload."""
SIDES: tuple[System, ...] = ("equal", "planned_uncapped", "planned")
SETTLE_S = 10.0
VIRTUAL_S = 60.0
REPEATS = 3


def workload() -> Workload:
    """P2 with 16 robots, slower."""
    robots = tuple(robot_name(number) for number in range(ROBOTS))
    needs = {
        Component.SYSTEM1: Need(MODEL, SLO_MS / 1e3),
        Component.MONITOR: Need(JUDGE, 2.0 * SLOWER, 0.5 / SLOWER),
    }
    system1, monitor = (Component.SYSTEM1,), (Component.MONITOR,)
    profiles = {
        (MODEL, Component.SYSTEM1): assumed_profile(
            MODEL, system1, "CPU slot", LINE, (1, 2, 4, 8, 16), 0.0, spread=0.03
        ),
        (JUDGE, Component.MONITOR): assumed_profile(
            JUDGE, monitor, "CPU slot", MONITOR_LINE, (16,), 0.0,
            batching="continuous", spread=0.15,
        ),
    }  # fmt: skip
    return Workload((RobotClass("p2", robots, ACTION_S, needs),), profiles)


def served_plan(allocation: Allocation) -> ServedPlan:
    """System 1 of an allocation."""
    servers = [one for one in allocation.servers if one.uses[0][1] is Component.SYSTEM1]
    engines = tuple(
        PlannedEngine(f"gpu{i}", "cpu", MODEL, one.batch, one.robots)
        for i, one in enumerate(servers)
    )
    periods = {robot: 1 / hz for robot, hz in allocation.requests_hz.items()}
    return ServedPlan("bench", {MODEL: {"policy": POLICY}}, engines, periods)


def run(folder: Path, *, quick: bool) -> Result:
    asked, options = workload(), PlanOptions("overlapped", network_s=NETWORK_S)
    shares: dict[System, Allocation] = {}
    for side in SIDES:
        share = allocate(side, asked, Cluster(GPUS, "CPU slot"), options)
        assert share is not None  # each of them serves this workload
        shares[side] = share
    virtual = {
        side: live(asked, share, "overlapped", NETWORK_S, VIRTUAL_S, SETTLE_S, 0).metrics()
        for side, share in shares.items()
    }
    env, logs = environment(), folder / "logs"
    found: dict[System, list[Measured]] = {side: [] for side in SIDES}
    arguments = ("--policy", POLICY, "--horizon", f"static:{ACTIONS}")
    with VirtualFleet(ROBOTS, logs, env, 8, *arguments) as robots:
        for repeat in range(1 if quick else REPEATS):
            for side in SIDES[:: 1 if repeat % 2 == 0 else -1]:
                plan = served_plan(shares[side]).text
                with Kairos(logs / f"{repeat}_{side}", env, plan=plan, scheduling="fifo") as server:
                    one = _measure(robots, server, 6.0 if quick else 15.0)
                found[side].append(one)
                print(f"{SYSTEMS[side]}: p99 {one.round_trip_p99_ms:.0f} ms, ", end="")
                print(f"{100 * one.within_slo:.0f} % within the SLO", flush=True)
    return _result(found, shares, virtual)


def _measure(robots: VirtualFleet, server: Kairos, seconds: float) -> Measured:
    robots.start(ROBOTS)
    robots.measure(SETTLE_S, server.pids())
    measured = robots.measure(seconds, server.pids(), SLO_MS)
    totals = robots.stop()
    if wrong := sum(robot.wrong for robot in totals):
        raise RuntimeError(f"{wrong} wrong answers: another server was on the same ROS domain")
    return measured


def _result(
    found: dict[System, list[Measured]],
    shares: dict[System, Allocation],
    virtual: dict[System, dict[str, float]],
) -> Result:
    medians: dict[System, dict[str, float]] = {}
    for side, repeats in found.items():
        rows = [asdict(one) for one in repeats]
        for row in rows:
            row["actions_hz"] = row["actions_per_s"] / ACTIONS
            row["qualified_hz"] = row["actions_hz"] * row["within_slo"]
        medians[side] = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
    header = ["", "GPUs of System 1", "actions/s", "within the SLO", "qualified actions/s"]
    header += ["p50 ms", "p99 ms", "in virtual time: actions/s", "within the SLO", "p99 ms"]
    table = [
        [
            SYSTEMS[side],
            shares[side].split.partition(":")[0],
            f"{m['actions_hz']:.1f}",
            f"{100 * m['within_slo']:.1f} %",
            f"{m['qualified_hz']:.1f}",
            f"{m['round_trip_p50_ms']:.0f}",
            f"{m['round_trip_p99_ms']:.0f}",
            f"{virtual[side]['actions_hz']:.1f}",
            f"{100 * virtual[side]['system1_within_slo']:.1f} %",
            f"{1e3 * virtual[side]['system1_p99_s']:.0f}",
        ]
        for side, m in medians.items()
    ]
    data: dict[str, Any] = {
        "slo_ms": SLO_MS,
        "plans": {side: served_plan(share).text for side, share in shares.items()},
        "medians": medians,
        "virtual": virtual,
        "runs": {side: [asdict(one) for one in repeats] for side, repeats in found.items()},
    }
    return Result(header, table, data, lambda path: _plot(path, medians, virtual))


def _plot(
    path: Path,
    medians: dict[System, dict[str, float]],
    virtual: dict[System, dict[str, float]],
) -> None:
    before, after = (medians[side]["qualified_hz"] for side in ("equal", "planned"))
    title = f"Planned fleet, live: from {before:.0f} to {after:.0f} qualified actions/s"
    about = f"{ROBOTS} robots over DDS, {GPUS} emulated GPUs; pale: in virtual time"
    with new_figure(path, title, about) as panel:
        for x, side in enumerate(SIDES):
            colour = OURS if side == "planned" else BASELINE
            panel.bar(x - 0.2, virtual[side]["qualified_hz"], 0.35, color=colour, alpha=0.5)
            panel.bar(x + 0.2, medians[side]["qualified_hz"], 0.35, color=colour)
        panel.set(ylabel="qualified actions/s", ylim=(0, None))
        panel.set_xticks(range(len(SIDES)), [SYSTEMS[side] for side in SIDES])
