"""Serving, viz and recorder nodes in one process, against three: `python -m bench composition`.

The demo policy and virtual robots at 30 Hz, as in `bench fleet`; a client looks at all markers, so
that the viz node draws, and the recorder writes a bag. Both sides one after the other, several
times; shown are medians. The engine worker is a process of its own on both sides.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from visualization_msgs.msg import MarkerArray

from bench.support.process_cost import memory_mb, with_children
from bench.support.report import Result, new_figure
from bench.support.servers import environment
from bench.support.virtual_fleet import Measured, VirtualFleet
from kairos_ros.bringup import plan as bringup
from kairos_ros.bringup.processes import Fleet
from kairos_ros.host.share import share
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS

SIDES = {"three": "three processes", "one": "one process"}
SIZES = (4, 16)
PER_PROCESS = 8
HORIZON = "static:10"
LAYERS = ("fleet", "robots", "chunks", "scheduler", "safety")
SETTLE_S = 3.0
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Point:
    """One side with one number of robots, measured once."""

    side: str
    robots: int
    memory_mb: float
    measured: Measured


def run(folder: Path, *, quick: bool) -> Result:
    policy = share() / "models" / "metaworld_flow"
    env, logs = environment(), folder / "logs"
    options = ("--policy", policy, "--horizon", HORIZON, "--instruction", "open the drawer")
    points: list[Point] = []
    sizes = SIZES[:1] if quick else SIZES
    with (
        _viewer(env),
        VirtualFleet(max(sizes), logs, env, PER_PROCESS, "--server", "kairos", *options) as robots,
    ):
        for number in range(1 if quick else REPEATS):
            for count in sizes:
                for side in SIDES:
                    at = folder / f"{side}_{count}_{number}"
                    with _servers(side, policy, at, env) as pids:
                        points.append(_measure(side, count, robots, pids, quick=quick))
    return _result(points)


@contextlib.contextmanager
def _viewer(env: dict[str, str]) -> Iterator[None]:
    """Somebody who looks at all that the viz node can draw."""
    os.environ.update(env)
    rclpy.init()
    node = rclpy.create_node("viewer")
    for layer in LAYERS:
        node.create_subscription(MarkerArray, f"/kairos/markers/{layer}", lambda _: None, 10)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread = threading.Thread(target=executor.spin)
    thread.start()
    try:
        yield
    finally:
        executor.shutdown()
        thread.join()
        rclpy.shutdown()


@contextlib.contextmanager
def _servers(side: str, policy: Path, folder: Path, env: dict[str, str]) -> Iterator[list[int]]:
    """The three nodes, once robots are served. Gives their processes' ids."""
    if side == "three":
        specs = [bringup.serving(policy=str(policy)), bringup.viz()]
        with Fleet([*specs, bringup.recorder(folder / "bag")], folder, env) as fleet:
            yield [process.pid for process in fleet.processes.values()]
        return
    folder.mkdir(parents=True)
    parameters = {"/kairos/serving": {"ros__parameters": {"policy": str(policy)}}}
    file = folder / "parameters.yaml"
    file.write_text(json.dumps(parameters))  # which is YAML, too
    program = [sys.executable, "-m", "bench.support.composed", str(folder / "bag")]
    program += ["--ros-args", "--params-file", str(file)]
    with (folder / "composed.log").open("wb") as log:
        process = subprocess.Popen(program, stdout=log, stderr=log, env={**os.environ, **env})
    try:
        yield [process.pid]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30.0)


def _measure(side: str, count: int, robots: VirtualFleet, pids: list[int], *, quick: bool) -> Point:
    robots.start(count)
    servers = with_children(pids)
    robots.measure(SETTLE_S, servers)
    measured = robots.measure(5.0 if quick else 10.0, servers)
    memory = memory_mb(servers)
    robots.stop()
    print(
        f"{SIDES[side]:16} {count:3} robots: p50 {measured.round_trip_p50_ms:.1f} ms, "
        f"p99 {measured.round_trip_p99_ms:.1f} ms, {memory:.0f} MB",
        flush=True,
    )
    return Point(side, count, memory, measured)


def _result(points: list[Point]) -> Result:
    header = ["", "robots", "chunks/s", "stalled %", "trip p50", "p99 ms", "MB", "CPU %"]
    rows, medians = [], []
    for count in sorted({point.robots for point in points}):
        for side in SIDES:
            mine = [point for point in points if (point.side, point.robots) == (side, count)]
            middle = {
                key: float(np.median([getattr(point.measured, key) for point in mine]))
                for key in asdict(mine[0].measured)
            }
            middle["memory_mb"] = float(np.median([point.memory_mb for point in mine]))
            medians.append({"side": side, "robots": count} | middle)
            rows.append(
                [
                    SIDES[side],
                    str(count),
                    f"{middle['chunks_per_s']:.1f}",
                    f"{100 * middle['stall_fraction']:.1f}",
                    f"{middle['round_trip_p50_ms']:.1f}",
                    f"{middle['round_trip_p99_ms']:.1f}",
                    f"{middle['memory_mb']:.0f}",
                    f"{100 * middle['server_cpu']:.0f}",
                ]
            )
    data = {"medians": medians, "points": [asdict(point) for point in points]}
    return Result(header, rows, data, lambda path: _plot(path, medians))


def _plot(path: Path, medians: list[dict[str, Any]]) -> None:
    title = "What one process for serving, viz and recorder saves, and what it costs"
    about = "demo policy, 30 Hz, a new chunk every 5 actions; all on two cores"
    with new_figure(path, title, about, panels=3) as axes:
        for side, colour in (("three", BASELINE), ("one", OURS)):
            own = [one for one in medians if one["side"] == side]
            robots = [one["robots"] for one in own]
            keys = ("round_trip_p50_ms", "round_trip_p99_ms", "memory_mb")
            for axis, key in zip(axes, keys, strict=True):
                axis.plot(robots, [one[key] for one in own], "o-", color=colour, label=SIDES[side])
        for axis, label in zip(
            axes, ("round trip p50 (ms)", "p99 (ms)", "memory (MB)"), strict=True
        ):
            axis.set(xlabel="robots", ylabel=label, ylim=(0, None))
        axes[0].legend(frameon=False)
