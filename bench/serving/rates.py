"""Rate control on a live fleet: robots that ask for more than the engine does, told and not told.

Virtual robots with the robot node's own loop at 30 Hz, over DDS; one serving node with an emulated
engine of pi05's size. A robot asks when half of its chunk of ten actions is left. Each side has a
serving node of its own, one after the other, the whole several times; shown are medians.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.report import Result, new_figure
from bench.support.servers import Kairos, environment
from bench.support.virtual_fleet import Measured, VirtualFleet
from kairos_ros.lab.metrics.figure_style import BASELINE, INK, OURS

POLICY = "emulated:latency_ms=80+35b,chunk=50,dim=7,state=7"
MAX_BATCH = 8
"""360 ms, 22 rounds per second at best."""
SLO_MS = 540.0
"""One and a half full batches: the rest of the running one, on average, and one's own."""
HORIZON = "static:10"
COUNTS = (8, 12, 24)
QUICK = (3, 12)
SIDES = {False: "uncapped", True: "rate control"}
SETTLE_S = 5.0
REPEATS = 3


def run(folder: Path, *, quick: bool) -> Result:
    counts = QUICK if quick else COUNTS
    env, logs = environment(), folder / "logs"
    found: dict[tuple[int, bool], list[Measured]] = {}
    options = ("--policy", POLICY, "--horizon", HORIZON)
    with VirtualFleet(max(counts), logs, env, 8, *options) as robots:
        for repeat in range(1 if quick else REPEATS):
            for told in SIDES:
                server = Kairos(
                    logs / f"{repeat}_{SIDES[told]}", env, policy=POLICY, max_batch=MAX_BATCH,
                    scheduling="fifo", rate_control=told,
                )  # fmt: skip
                with server:
                    for count in counts:
                        one = _measure(robots, server, count, 10.0 if quick else 12.0)
                        found.setdefault((count, told), []).append(one)
                        print(f"{SIDES[told]:12} {count:3} robots: ", end="")
                        print(f"p99 {one.round_trip_p99_ms:.0f} ms", flush=True)
    return _result(found, counts)


def _measure(robots: VirtualFleet, server: Kairos, count: int, seconds: float) -> Measured:
    robots.start(count)
    robots.measure(SETTLE_S, server.pids())
    measured = robots.measure(seconds, server.pids(), SLO_MS)
    totals = robots.stop()
    if wrong := sum(robot.wrong for robot in totals):
        raise RuntimeError(f"{wrong} wrong answers: another server was on the same ROS domain")
    return measured


def _result(found: dict[tuple[int, bool], list[Measured]], counts: tuple[int, ...]) -> Result:
    medians: dict[tuple[int, bool], dict[str, float]] = {}
    for key, repeats in found.items():
        of = {
            name: float(np.median([asdict(m)[name] for m in repeats]))
            for name in asdict(repeats[0])
        }
        of["qualified_actions_per_s"] = of["actions_per_s"] * of["within_slo"]
        medians[key] = of
    header = ["robots", "", "actions/s", f"within {SLO_MS:.0f} ms", "qualified", "p50", "p99 ms"]
    header += ["chunks/s", "stalled %"]
    rows = [
        [
            f"{count}",
            SIDES[told],
            f"{m['actions_per_s']:.0f}",
            f"{100 * m['within_slo']:.0f} %",
            f"{m['qualified_actions_per_s']:.0f}",
            f"{m['round_trip_p50_ms']:.0f}",
            f"{m['round_trip_p99_ms']:.0f}",
            f"{m['chunks_per_s']:.1f}",
            f"{100 * m['stall_fraction']:.0f}",
        ]
        for count in counts
        for told in SIDES
        for m in [medians[count, told]]
    ]
    data: dict[str, Any] = {
        "slo_ms": SLO_MS,
        "medians": {f"{count} {SIDES[told]}": m for (count, told), m in medians.items()},
        "runs": {
            f"{count} {SIDES[told]}": [asdict(m) for m in f] for (count, told), f in found.items()
        },
    }
    return Result(header, rows, data, lambda path: _plot(path, medians, counts))


def _plot(
    path: Path, medians: dict[tuple[int, bool], dict[str, float]], counts: tuple[int, ...]
) -> None:
    last = counts[-1]
    before, after = (medians[last, told]["round_trip_p99_ms"] for told in SIDES)
    title = f"Rate control takes the p99 of {last} robots from {before:.0f} to {after:.0f} ms"
    about = "emulated engine, 22 rounds/s at best; robots with the robot node's loop, over DDS"
    with new_figure(path, title, about, panels=2) as (trips, actions):
        for told, colour in ((False, BASELINE), (True, OURS)):
            for name, style in (("p50", "--"), ("p99", "-")):
                values = [medians[n, told][f"round_trip_{name}_ms"] for n in counts]
                label = f"{SIDES[told]}, {name}"
                trips.plot(counts, values, style, marker="o", color=colour, label=label)
            for name, style in (("actions_per_s", "--"), ("qualified_actions_per_s", "-")):
                values = [medians[n, told][name] for n in counts]
                actions.plot(counts, values, style, marker="o", color=colour)
        trips.axhline(SLO_MS, color=INK, lw=0.8, ls=":")
        trips.set(xlabel="robots", ylabel="time to an answer (ms)", ylim=(0, None))
        trips.legend(frameon=False)
        label = f"actions/s, dashed; within {SLO_MS:.0f} ms, solid"
        actions.set(xlabel="robots", ylabel=label, ylim=(0, None))
