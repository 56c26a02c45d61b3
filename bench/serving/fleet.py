"""Robots per machine: one of our serving nodes against one LeRobot PolicyServer per robot.

The demo policy, virtual robots at 30 Hz on the wall clock, chunks of 10 actions, the next one asked
for when 5 are left: about 6 requests a second per robot, on both sides by the same client code.
Servers and clients of either side share the same two cores. For every fleet size both sides are
measured one after the other, the whole several times; shown are medians.
"""

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.process_cost import memory_mb
from bench.support.report import Result, new_figure
from bench.support.servers import Kairos, PolicyServers, environment
from bench.support.virtual_fleet import Measured, VirtualFleet
from kairos_ros.host.share import share
from kairos_ros.lab.metrics.figure_style import BASELINE, INK, OURS

SIDES = {"kairos": "kairos_ros", "lerobot": "LeRobot"}
SIZES = {
    "kairos": (1, 4, 8, 16, 32, 48, 64, 80, 96),
    "lerobot": (1, 4, 8, 12, 16, 20, 24),
}
QUICK = {"kairos": (1, 8, 16), "lerobot": (1, 8)}
PER_PROCESS = 8
HORIZON = "static:10"
INSTRUCTION = "open the drawer"
TOLERATED = 0.05
"""Stall fraction at which a fleet counts as too large."""
SETTLE_S = 2.0
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Point:
    """One side with one number of robots, measured once."""

    side: str
    robots: int
    memory_mb: float
    refetched: float
    """Observations fetched again, per round."""
    measured: Measured


def run(folder: Path, *, quick: bool) -> Result:
    sizes = QUICK if quick else SIZES
    policy = share() / "models" / "metaworld_flow"
    env, logs = environment(), folder / "logs"
    options = ("--policy", policy, "--horizon", HORIZON, "--instruction", INSTRUCTION)
    most = {side: max(sizes[side]) for side in SIDES}
    points: list[Point] = []
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Kairos(logs, env, policy=str(policy)))
        theirs = stack.enter_context(PolicyServers(logs, env))
        robots = {
            side: stack.enter_context(
                VirtualFleet(most[side], logs / side, env, PER_PROCESS, "--server", side, *options)
            )
            for side in SIDES
        }
        for _ in range(1 if quick else REPEATS):
            for count in sorted({*sizes["kairos"], *sizes["lerobot"]}):
                if count in sizes["kairos"]:
                    points.append(_measure("kairos", count, robots, ours.pids, quick))
                if count in sizes["lerobot"]:
                    theirs.grow(count)
                    points.append(
                        _measure("lerobot", count, robots, partial(theirs.pids, count), quick)
                    )
    return _result(points)


def _measure(
    side: str,
    count: int,
    fleets: dict[str, VirtualFleet],
    pids: Callable[[], list[int]],
    quick: bool,
) -> Point:
    robots = fleets[side]
    robots.start(count)
    servers = pids()
    robots.measure(SETTLE_S, servers)
    measured = robots.measure(5.0 if quick else 10.0, servers)
    memory = memory_mb(servers)
    totals = robots.stop()
    if wrong := sum(robot.wrong for robot in totals):
        raise RuntimeError(f"{wrong} wrong answers: another server was on the same ROS domain")
    rounds, refetched = (sum(getattr(t, key) for t in totals) for key in ("rounds", "refetched"))
    print(f"{side:8} {count:3} robots: {100 * measured.stall_fraction:5.1f} % stalled, ", end="")
    print(f"{measured.chunks_per_s:6.1f} chunks/s", flush=True)
    return Point(side, count, memory, refetched / max(1, rounds), measured)


def _result(points: list[Point]) -> Result:
    medians = {
        side: [
            _median([point for point in points if (point.side, point.robots) == (side, count)])
            for count in sorted({point.robots for point in points if point.side == side})
        ]
        for side in SIDES
    }
    capacity = {side: largest_fleet(medians[side]) for side in SIDES}
    header = ["", "robots", "chunks/s", "stalled %", "trip p50", "p99 ms", "MB", "CPU %", "clients"]
    rows = [
        [
            SIDES[side],
            f"{m['robots']}",
            f"{m['chunks_per_s']:.1f}",
            f"{100 * m['stall_fraction']:.1f}",
            f"{m['round_trip_p50_ms']:.0f}",
            f"{m['round_trip_p99_ms']:.0f}",
            f"{m['memory_mb']:.0f}",
            f"{100 * m['server_cpu']:.0f}",
            f"{100 * m['client_cpu']:.0f}",
        ]
        for side, own in medians.items()
        for m in own
    ]
    data = {
        "tolerated_stall_fraction": TOLERATED,
        "largest_fleet": capacity,
        "ratio": capacity["kairos"] / capacity["lerobot"],
        "medians": medians,
        "points": [asdict(point) for point in points],
    }
    return Result(header, rows, data, lambda path: _plot(path, medians, capacity))


def _median(repeats: list[Point]) -> dict[str, Any]:
    keys = asdict(repeats[0].measured)
    middle = {
        key: float(np.median([getattr(point.measured, key) for point in repeats])) for key in keys
    }
    for key in ("memory_mb", "refetched"):
        middle[key] = float(np.median([getattr(point, key) for point in repeats]))
    return {"robots": repeats[0].robots} | middle


def largest_fleet(sizes: list[dict[str, Any]]) -> float:
    """Robots at which the stall fraction crosses TOLERATED, linear between measured sizes; the
    largest measured size where it never does."""
    before: dict[str, Any] = {"robots": 0, "stall_fraction": 0.0}
    for size in sizes:
        if size["stall_fraction"] > TOLERATED:
            step = size["stall_fraction"] - before["stall_fraction"]
            share = (TOLERATED - before["stall_fraction"]) / step
            return float(before["robots"] + share * (size["robots"] - before["robots"]))
        before = size
    return float(before["robots"])


def _plot(path: Path, medians: dict[str, list[dict[str, Any]]], capacity: dict[str, float]) -> None:
    title = (
        f"One server keeps {capacity['kairos']:.0f} robots moving where a server per robot "
        f"keeps {capacity['lerobot']:.0f}"
    )
    about = "demo policy, 30 Hz, a new chunk every 5 actions; servers and robots share two cores"
    with new_figure(path, title, about, panels=3) as (stalls, chunks, memory):
        for side, colour in (("lerobot", BASELINE), ("kairos", OURS)):
            own = medians[side]
            robots = [size["robots"] for size in own]
            stalled = [100 * size["stall_fraction"] for size in own]
            stalls.plot(robots, stalled, "o-", color=colour, label=SIDES[side])
            chunks.plot(robots, [size["chunks_per_s"] for size in own], "o-", color=colour)
            memory.plot(robots, [size["memory_mb"] / 1e3 for size in own], "o-", color=colour)
        stalls.axhline(100 * TOLERATED, color=INK, lw=0.8, ls=":")
        stalls.set(xlabel="robots", ylabel="time without an action (%)", ylim=(0, 50))
        stalls.legend(frameon=False)
        chunks.set(xlabel="robots", ylabel="chunks/s delivered", ylim=(0, None))
        memory.set(xlabel="robots", ylabel="memory of all servers (GB)", ylim=(0, None))
