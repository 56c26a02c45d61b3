"""An hour of fifty robots with cameras, while robots come and go, workers die and links are cut.

    python -m bench soak [--minutes 60] [--robots 50]

One serving node with an engine of its own and one in the cloud, behind an emulated link with keys;
2.5 requests/s per robot with 3 × 224 px JPEG. In every ten minutes (all of it closer together in a
run that is shorter): the edge's engine worker is killed, the link is cut, the cloud's engine worker
is killed, and the host of ten robots is lost, with another one in its place; every seven seconds a
robot says goodbye or a new one comes. The emulated engines write a mark of the observation into the
actions, so that an answer to another robot, or to another observation, is counted as wrong.

Ends with status 1 where an answer was lost or wrong, or where a process grows: memory by the second
half of each life.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.soak.soak_figure import plot
from bench.soak.soak_fleet import soak
from bench.soak.soak_outcome import SECOND_HALF, Outcome
from bench.support.process_growth import MEMORY, Slope
from bench.support.servers import ROOT

ROBOTS = 50


def growth_table(outcome: Outcome) -> Table:
    measures = (MEMORY, SECOND_HALF, "descriptors", "threads")
    table = Table("process", "lives", *(f"{name}, per hour" for name in measures))
    for name, found in outcome.slopes().items():
        lives = len({one.pid for one in outcome.processes[name]})
        table.add_row(name, f"{lives}", *(_cell(found[measure]) for measure in measures))
    return table


def _cell(one: Slope | None) -> str:
    if one is None:
        return "too short"
    mark = "" if one.flat else "  GROWS"
    return f"{one.per_hour:+.2f} ({one.low:+.2f} to {one.high:+.2f}) of {one.level:.1f}{mark}"


def counts_table(outcome: Outcome) -> Table:
    totals, (first_ms, last_ms) = outcome.totals, outcome.ends_p99_ms()
    periods = sum(i.acted + i.held for i in outcome.intervals)
    cloud = sum(i.cloud for i in outcome.intervals) / max(1, totals.actions)
    ends = f"{outcome.timetable.ends_s / 60:g} min"
    table = Table("", "")
    for name, value in (
        ("requests", f"{totals.requests}"),
        ("rounds answered by actions", f"{totals.actions}"),
        ("lost", f"{totals.unanswered}"),
        ("wrong", f"{totals.wrong}"),
        ("sent again after 5 s of silence", f"{totals.silences}"),
        ("answered twice", f"{totals.repeated}"),
        ("refused, and asked again", f"{totals.refused}"),
        ("observations fetched again", f"{totals.refetched}"),
        ("given up by robots that stood still", f"{totals.abandoned}"),
        ("served by the cloud", f"{cloud:.0%}"),
        ("periods without an action", f"{sum(i.held for i in outcome.intervals) / periods:.2%}"),
        (f"P99 of the first {ends}", f"{first_ms:.0f} ms"),
        (f"P99 of the last {ends}", f"{last_ms:.0f} ms"),
        ("robots that came, left, were lost", f"{outcome.came}, {outcome.left}, {outcome.cut_off}"),
        ("faults", f"{len(outcome.happened)}"),
    ):
        table.add_row(name, value)
    return table


def as_json(outcome: Outcome, load_before: Sequence[float]) -> dict[str, Any]:
    return {
        "minutes": outcome.timetable.length_s / 60,
        "interrupted": outcome.interrupted,
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "totals": asdict(outcome.totals),
        "came": outcome.came,
        "left": outcome.left,
        "cut_off": outcome.cut_off,
        "p99_ms": dict(zip(("first", "last"), outcome.ends_p99_ms(), strict=True)),
        "ends_s": outcome.timetable.ends_s,
        "problems": outcome.problems(),
        "faults": [asdict(fault) for fault in outcome.happened],
        "slopes": {
            name: {measure: one and asdict(one) for measure, one in measures.items()}
            for name, measures in outcome.slopes().items()
        },
        "intervals": [interval.written() for interval in outcome.intervals],
        "processes": {
            name: [asdict(one) for one in samples] for name, samples in outcome.processes.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="how long [60]")
    parser.add_argument("--robots", type=int, default=ROBOTS, help=f"at a time [{ROBOTS}]")
    parser.add_argument("--save-figures", type=Path, metavar="FOLDER", help="copy the figure there")
    arguments = parser.parse_args()
    if not 0.5 <= arguments.minutes <= 24 * 60 or not 1 <= arguments.robots <= 100:
        parser.error("give from half a minute to a day, and from 1 to 100 robots")
    folder = ROOT / "runs" / f"bench-soak-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    console, load = Console(width=None if sys.stdout.isatty() else 160), os.getloadavg()
    outcome = soak(folder, arguments.minutes, arguments.robots, console)
    console.print()
    console.print(counts_table(outcome))
    console.print(growth_table(outcome))
    (folder / "soak.json").write_text(json.dumps(as_json(outcome, load), indent=1) + "\n")
    picture = plot(folder / "soak.png", outcome)
    if arguments.save_figures:
        arguments.save_figures.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, arguments.save_figures / "bench_soak.png")
    problems = outcome.problems()
    for problem in problems:
        console.print(f"[bold]{problem}[/bold]")
    console.print(f"written to {folder.relative_to(ROOT)}")
    return 130 if outcome.interrupted else 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
