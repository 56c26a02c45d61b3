"""Benchmarks: `python -m bench [NAME ...] [--quick] [--save-figures FOLDER]`.

`--help` lists them, and the programs beside them. Prints a table per benchmark and writes
everything measured as JSON, and a figure each, to runs/bench-<time>/. Comparisons with a peer
alternate between the two sides within one run.
"""

import argparse
import importlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from difflib import get_close_matches
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from bench.support.report import Result
from bench.support.servers import ROOT

FAMILIES = {
    "serving": (
        "overhead",
        "round_trip",
        "fleet",
        "robots50",
        "rates",
        "rate_caps",
        "factory",
        "scheduler",
        "composition",
        "pool",
        "forged_names",
        "large_messages",
    ),
    "doors": ("doors", "doors_families"),
    "soak": ("soak",),
    "transport": ("hop", "discovery", "link", "radio", "fuzz", "worker_memory"),
    "cloud": ("hybrid",),
    "robot": ("stop", "robot_driver", "sim_driver", "camera_robots", "surprise"),
    "judges": ("judgements", "judges", "pipeline", "gateway"),
    "recording": ("record", "traces", "improve", "otlp"),
    "virtual_time": ("replay", "simulate"),
    "horizons": ("horizon_signals", "rtc", "critic"),
    "engine": ("history", "engine_idle", "load", "unified", "decoding", "gpu"),
}
"""Folder -> what is measured there, a module each; `support` has what they share."""
ABOUT = {
    "overhead": "serving one robot, against LeRobot's PolicyServer",
    "round_trip": "where the milliseconds of serving one robot go",
    "hop": "500 KB to an engine worker and back, with keys and without, against LeRobot's gRPC",
    "discovery": "how long a new node is deaf, with Fast DDS's announcements and with ours",
    "fleet": "robots per machine, against one PolicyServer per robot",
    "rates": "robots that ask for more than an engine does, with rate control and without",
    "rate_caps": "robots that keep to the rates of a plan, against the same plan without rates",
    "factory": "a planned fleet on four emulated GPUs, against GPUs shared out equally",
    "robots50": "fifty robots with cameras: what is lost, what is wrong",
    "record": "what the recorder keeps up with",
    "replay": "virtual time against real time",
    "hybrid": "edge, cloud or both over an emulated WAN, and the sweep over that WAN",
    "judgements": "safety and monitor on one model: our queue, against sending all at once",
    "gateway": "orders and dispatches of kairos gateway, before real language model servers",
    "judges": "cells that one judging node serves on one core",
    "stop": "from somebody in the cell to an arm that holds",
    "pipeline": "actions per second under safety, monitor and planner, against without",
    "scheduler": "decisions per second",
    "doors": "robots with openpi's and GR00T's clients, against their own server designs",
    "unified": "a policy that answers questions besides, from one prefill or from two",
    "decoding": "which of a policy's answers a step decodes: all of them, or by slack",
    "composition": "serving, viz and recorder in one process, against three",
}
PROGRAMS = {
    "simulate": "how long virtual time takes, up to 10,000 robots",
    "traces": "records the demo's tasks as traces",
    "improve": "from the bags of a fleet to a better policy: what its failed tasks teach",
    "otlp": "what OpenTelemetry traces cost the fleet, and who listens",
    "link": "whether links can be emulated here, and how true they are",
    "radio": "robots over a network that loses packets, by how DDS is set up",
    "horizon_signals": "which signals inside a chunk know the delicate phase of a task",
    "critic": "what a decision of a learned horizon policy costs, beside those of others",
    "rtc": "chunks guided by what their robots execute, against plain ones, in simulation",
    "forged_names": "one robot's round trips while hundreds of forged names announce themselves",
    "fuzz": "fuzzes the decoder of engine messages",
    "large_messages": "what a large request costs a node, as bytes and as objects",
    "robot_driver": "what LeRobot's driver costs a robot node, and how soon it notices faults",
    "sim_driver": "what a simulated arm's driver costs, and how steady it is",
    "camera_robots": "what simulated robots that see cost, and how many two cores carry",
    "surprise": "what comparing commanded and achieved motion costs per control period",
    "history": "what a policy that reads motion knows of it with one observation, and with two",
    "engine_idle": "how long an engine waits between two batches at saturation",
    "load": "what loading a policy costs in time and memory, against LeRobot's own way",
    "gpu": "all that needs a GPU, in slices that are resumed: latency, memory, compilation",
    "soak": "an hour of robots that come and go, workers that die and links that are cut",
    "worker_memory": "whether an engine worker grows under batches without pause",
    "doors_families": "openpi's client with a policy of each family",
    "pool": "what replicas behind one worker cost and bring",
}
"""They have options of their own: `python -m bench NAME --help`."""
CORES = 2
"""Everything measured runs on as many: servers and clients of both sides share them."""


def module_of(name: str) -> str:
    return next(f"bench.{family}.{name}" for family, names in FAMILIES.items() if name in names)


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in PROGRAMS:
        del sys.argv[0]
        # by its own name, by which its worker processes import it, too
        code: int | None = importlib.import_module(module_of(sys.argv[0])).main()
        return code or 0
    names = list(ABOUT)
    if len(sys.argv) == 3 and sys.argv[1] in ABOUT and sys.argv[2] in ("-h", "--help"):
        benchmark = importlib.import_module(module_of(sys.argv[1]))
        print(f"usage: python -m bench {sys.argv[1]} [--quick] [--save-figures FOLDER]\n")
        print(benchmark.__doc__)
        return 0
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__.splitlines()[0],
        epilog=_listed("benchmarks", ABOUT)
        + _listed("programs with options of their own", PROGRAMS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks [all of them]")
    parser.add_argument("--quick", action="store_true", help="short runs, for a first look")
    parser.add_argument("--save-figures", type=Path, metavar="FOLDER", help="copy figures there")
    arguments = parser.parse_args()
    if own := set(arguments.names) & set(PROGRAMS):
        parser.error(f"`python -m bench {min(own)}` is a program of its own")
    if unknown := set(arguments.names) - set(names):
        first = min(unknown)
        known = (*names, *PROGRAMS)
        close = get_close_matches(first, known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        parser.error(f"unknown benchmark {first!r}{hint}; known are {', '.join(known)}")
    chosen = arguments.names or names
    if {"overhead", "fleet", "hop"} & set(chosen) and importlib.util.find_spec("grpc") is None:
        parser.error("LeRobot's PolicyServer needs grpc: install the dependency group 'bench'")
    signal.signal(signal.SIGTERM, _leave)
    # what a shell starts in the background ignores Ctrl-C, unless it says otherwise
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    folder = ROOT / "runs" / f"bench-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    console = Console(width=None if sys.stdout.isatty() else 120)
    for name in chosen:
        console.rule(f"[bold]{name}")
        if name == "scheduler":
            command = [sys.executable, "-m", module_of(name)]
            command += ["--json", str(folder / "scheduler.json")]
            subprocess.run(command, check=True, cwd=ROOT)
            continue
        benchmark = importlib.import_module(module_of(name))
        result: Result = benchmark.run(folder / name, quick=arguments.quick)
        _report(console, folder, name, result)
        if arguments.save_figures:
            arguments.save_figures.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / f"{name}.png", arguments.save_figures / f"bench_{name}.png")
    console.print(f"written to {folder.relative_to(ROOT)}")
    return 0


def _listed(title: str, about: dict[str, str]) -> str:
    return f"{title}:\n" + "".join(f"  {name:16} {text}\n" for name, text in about.items()) + "\n"


def _report(console: Console, folder: Path, name: str, result: Result) -> None:
    table = Table(*result.header)
    for row in result.rows:
        table.add_row(*row)
    console.print(table)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": CORES,
        "load_average_at_the_end": os.getloadavg(),
        "time": time.strftime("%Y-%m-%d %H:%M"),
    }
    data = {"benchmark": name, "machine": machine, "header": result.header, "rows": result.rows}
    (folder / f"{name}.json").write_text(json.dumps(data | result.data, indent=1) + "\n")
    result.plot(folder / f"{name}.png")


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
