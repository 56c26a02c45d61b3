"""Robots over a radio that loses packets, and is gone for a while: `python -m bench radio`.

A serving node and virtual robots with three cameras (`kairos replay --external`) in two network
namespaces; between them a link of 7 ms there and back, 6 ms jitter, 100 Mbit/s. DDS as it comes
over a network (UDP), against its built-in transports for large data (TCP). Runs alternate; P50, P95
and the stalled share of task time are means over runs. Needs root, as `python -m bench link`.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.support.servers import ROOT, environment
from bench.transport.link import Link, why_not
from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.process_spec import command
from kairos_ros.host.orphan import LAUNCHER_PID
from kairos_ros.lab.testbed.link_proxy import Conditions
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_files import load_run
from kairos_ros.recording.runs.summary import Summary, summarise

RADIO = Conditions(delay_s=0.002, jitter_s=0.003, bits_per_s=100e6)
TRANSPORTS = {"UDP, as it comes": "UDPv4", "LARGE_DATA": "LARGE_DATA"}
"""What a row calls it -> FASTDDS_BUILTIN_TRANSPORTS of every process."""
CUT_AT_S, CUT_FOR_S = 10.0, 3.0
"""Since the robots were started."""
CAMERAS = "|".join(f"{name}@224x224" for name in ("top", "left", "right"))
POLICY = f"emulated:latency_ms=40+10b,chunk=50,dim=4,state=39,images={CAMERAS}"
TRACES = ROOT / "config" / "traces" / "metaworld_sample.jsonl.gz"
ROBOTS = 4
LIMIT_S = 120.0
"""A fleet that is not done then is ended; its unfinished tasks do not count."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What goes wrong on the air."""

    name: str
    loss: float = 0.0
    """Share of packets, in either direction."""
    cut: bool = False


WEATHERS = (
    Weather("nothing lost"),
    Weather("0.1 % lost", 0.001),
    Weather("1 % lost", 0.01),
    Weather(f"gone for {CUT_FOR_S:g} s", cut=True),
)


def run(transport: str, weather: Weather, tasks: int, folder: Path) -> FleetRun:
    """One fleet; what it left behind. Raises RuntimeError where it left nothing."""
    env = environment(
        FASTDDS_BUILTIN_TRANSPORTS=transport,
        ROS_AUTOMATIC_DISCOVERY_RANGE="SUBNET",  # nothing leaves the two namespaces
    ) | {LAUNCHER_PID: str(os.getpid())}
    kairos = str(Path(sys.executable).with_name("kairos"))
    robots = [kairos, "replay", str(TRACES), "--external", "--policy", POLICY]
    robots += ["--robots", str(ROBOTS), "--tasks", str(tasks), "--out", str(folder / "run")]
    robots += ["--accounting", "observation", "--horizon", "static:20"]
    with Link(RADIO) as link:
        here, there = link.addresses
        node = [*link.inside(0), *command(serving(policy=POLICY))]
        link.change(loss=weather.loss)
        with (
            _started(node, env | {"ROS_STATIC_PEERS": there}, folder / "serving.log"),
            _started(
                [*link.inside(1), *robots], env | {"ROS_STATIC_PEERS": here}, folder / "robots.log"
            ) as fleet,
            _cut(link) if weather.cut else contextlib.nullcontext(),
            contextlib.suppress(subprocess.TimeoutExpired),
        ):
            fleet.wait(LIMIT_S)
    if fleet.returncode:
        raise RuntimeError((folder / "robots.log").read_text()[-2000:])
    return load_run(folder / "run")[0]


@contextlib.contextmanager
def _started(
    line: Sequence[str], env: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is told to end, and then made to."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            line, stdout=out, stderr=out, env=os.environ | env, cwd=ROOT, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _cut(link: Link) -> Iterator[None]:
    """The link is gone for a while."""
    timers = [
        threading.Timer(CUT_AT_S, lambda: link.change(cut="both")),
        threading.Timer(CUT_AT_S + CUT_FOR_S, lambda: link.change(cut="")),
    ]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()


def row(fleets: Sequence[FleetRun], tasks: int) -> list[str]:
    """Of the same weather and transport; every fleet was given so many tasks."""
    all_of = [summarise(fleet) for fleet in fleets]
    trips_s = [
        t for fleet in fleets for task in fleet.tasks for t in task.round_latency_s if not isnan(t)
    ]
    return [
        f"{sum(s.tasks for s in all_of)} of {tasks * len(fleets)}",
        _ms(all_of, "p50"),
        _ms(all_of, "p95"),
        f"{max(trips_s):.2f}",
        f"{sum(s.stall_fraction or 0.0 for s in all_of) / len(all_of):.1%}",
    ]


def _ms(summaries: Sequence[Summary], which: str) -> str:
    values = [1e3 * getattr(s.chunk_latency_s, which) for s in summaries if s.chunk_latency_s]
    return f"{sum(values) / len(values):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench radio", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    quick = parser.parse_args().quick
    if reason := why_not():
        sys.exit(f"LINKS CANNOT BE EMULATED HERE: {reason}")
    runs: dict[tuple[str, str], list[FleetRun]] = {}
    repeats, tasks = (1, 12) if quick else (3, 32)
    with tempfile.TemporaryDirectory(prefix="kairos-radio-") as folder:
        for repeat in range(repeats):
            for weather in WEATHERS:
                for name, transport in TRANSPORTS.items():
                    place = Path(folder) / f"{repeat}_{weather.name}_{transport}"
                    place.mkdir()
                    fleet = run(transport, weather, tasks, place)
                    runs.setdefault((weather.name, name), []).append(fleet)
                    said = ", ".join(row([fleet], tasks))
                    print(f"{repeat + 1}/{repeats} {weather.name}, {name}: {said}", flush=True)
    table = Table("on the air", "DDS", "tasks", "chunk P50 ms", "P95 ms", "longest s", "stalled")
    for (weather_name, name), fleets in runs.items():
        table.add_row(weather_name, name, *row(fleets, tasks))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
