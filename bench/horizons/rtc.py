"""Real-time chunking against plain chunks, in simulation: success, seam and jerk by latency.

    python -m bench rtc [--out runs/rtc] [--processes 2]

A robot plans while it moves: between an observation and the first action of its chunk it executes
`lead` actions of the chunk before, so lead is the latency in control periods (at most half of the
horizon is executed so). With guidance the policy is told them. Both sides run the same seeds.

Seam: jump of the hand's commanded speed at a switch of chunks, on average. Jerk: second difference
of that speed over all control periods, root mean square of an episode. Both in action units.

Whatever is done is kept in OUT/cells.jsonl and not run again; Ctrl-C loses nothing.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.horizons.rtc_cell import run_cell
from bench.support.arguments import positive_int
from bench.support.report import new_figure
from kairos_ros.bringup.plan import calibrated
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import parse_horizon
from kairos_ros.lab.horizons.dominance import Difference, Outcomes, difference
from kairos_ros.lab.metrics.cells import Key, run_cells, source_version
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS
from kairos_ros.lab.training.bench import ARMS, EPISODES
from kairos_ros.recording.runs.summary import wilson_95
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

FIRST_SEED = 4_000_000
TASKS = ("door-open-v3", "drawer-open-v3", "lever-pull-v3", "push-v3")
HORIZONS = ("static:10", "static:20", "static:30", "tail_agreement:t=0.8,h_min=5", "calibrated")
LEADS = (0, 2, 5, 10, 15)
SIDES = ("plain", "guided")


@dataclass(frozen=True, slots=True)
class Side:
    """All episodes of one side of a row."""

    outcomes: Outcomes
    seam: float
    step: float
    """Jump between two actions of one chunk."""
    jerk: float

    @classmethod
    def of(cls, blocks: Sequence[Sequence[Mapping[str, Any]]]) -> "Side":
        """From the cells of each task."""
        joined = [
            {name: [value for block in task for value in block[name]] for name in task[0]}
            for task in blocks
        ]
        outcomes = (
            np.array([task[n] for task in joined]) for n in ("success", "rounds", "actions")
        )
        jumps = (
            np.mean([value for task in joined for value in task[name]] or [np.nan])
            for name in ("seam", "step", "jerk")
        )
        return cls(Outcomes(*outcomes), *map(float, jumps))


Row = tuple[str, float, int]
"""Horizon policy, disturbance, lead."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench rtc",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--policy", type=Path, default=Path("models/metaworld_flow"))
    parser.add_argument("--tasks", nargs="+", choices=SCENES, default=TASKS)
    parser.add_argument("--horizons", nargs="+", default=HORIZONS)
    parser.add_argument("--lead", nargs="+", type=int, default=LEADS, help="actions")
    parser.add_argument(
        "--disturbance",
        nargs="+",
        type=float,
        default=(0.0,),
        help="noise on every motion of the hand, standard deviation in action units",
    )
    parser.add_argument("--episodes", type=positive_int, default=128, help="of each task in a row")
    parser.add_argument("--processes", type=positive_int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/rtc"))
    arguments = parser.parse_args()
    try:
        for horizon in arguments.horizons:
            parse_horizon(horizon, calibrated(str(arguments.policy)))
    except ConfigError as error:
        parser.error(str(error))
    rows = [
        (horizon, disturbance, lead)
        for disturbance in arguments.disturbance
        for horizon in arguments.horizons
        for lead in arguments.lead
    ]
    found = measure(arguments, rows)
    print(table(found))
    plot(arguments.out / "rtc.png", found)
    print(f"\nwritten to {arguments.out}")


def measure(arguments: argparse.Namespace, rows: Sequence[Row]) -> dict[Row, dict[str, Side]]:
    """Runs what is missing."""
    blocks = [
        (FIRST_SEED + at, min(ARMS, arguments.episodes - at))
        for at in range(0, arguments.episodes, ARMS)
    ]
    keys: list[Key] = [
        {
            "folder": str(arguments.policy),
            "horizon": horizon,
            "disturbance": disturbance,
            "lead": lead,
            "side": side,
            "task": task,
            "first_seed": first_seed,
            "episodes": episodes,
        }
        for horizon, disturbance, lead in rows
        for task in arguments.tasks
        for side in SIDES
        for first_seed, episodes in blocks
    ]

    def tell(left: int, key: Key, result: Any) -> None:
        if left % 50 == 0:
            print(f"{left} cells left, {key['horizon']} lead {key['lead']}", flush=True)

    code = source_version((*EPISODES, "engine/policies/families/guidance.py"))
    file = arguments.out / "cells.jsonl"
    cells = iter(
        run_cells(file, keys, run_cell, code=code, processes=arguments.processes, finished=tell)
    )
    found: dict[Row, dict[str, Side]] = {}
    for row in rows:
        by_side: dict[str, list[Any]] = {side: [] for side in SIDES}
        for _ in arguments.tasks:
            for side in SIDES:
                by_side[side].append([next(cells) for _ in blocks])
        found[row] = {side: Side.of(tasks) for side, tasks in by_side.items()}
    return found


def table(found: Mapping[Row, Mapping[str, Side]]) -> str:
    """One line a row: plain -> guided, and the difference of success with its 95 % interval."""
    lines = [
        "| noise | horizon | lead | success % | guided - plain, points | seam | jerk | rounds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (horizon, noise, lead), sides in found.items():
        plain, guided = (sides[side] for side in SIDES)
        gap = difference(guided.outcomes, plain.outcomes)
        lines.append(
            f"| {noise:g} | {horizon} | {lead} | {_both(sides, _success, 1)} | {_points(gap)} "
            f"| {_both(sides, lambda side: side.seam, 2)} | {_both(sides, lambda s: s.jerk, 3)} "
            f"| {_both(sides, lambda side: float(side.outcomes.rounds.mean()), 1)} |"
        )
    return "\n".join(lines)


def _success(side: Side) -> float:
    return 100 * float(side.outcomes.success.mean())


def _interval(side: Side) -> tuple[float, float]:
    """95 % interval of the success, in %."""
    low, high = wilson_95(int(side.outcomes.success.sum()), side.outcomes.success.size)
    return 100 * low, 100 * high


def _both(sides: Mapping[str, Side], value: Any, digits: int) -> str:
    plain, guided = (value(sides[side]) for side in SIDES)
    return "none" if math.isnan(plain) else f"{plain:.{digits}f} → {guided:.{digits}f}"


def _points(gap: Difference) -> str:
    low, high = (100 * bound for bound in gap.success_95)
    return f"{100 * gap.success:+.1f} ({low:+.1f} to {high:+.1f})"


def plot(path: Path, found: Mapping[Row, Mapping[str, Side]]) -> None:
    """Success with its 95 % interval, and seam, against lead, for every horizon; without noise."""
    horizons = list(dict.fromkeys(horizon for horizon, _, _ in found))
    noise = min(noise for _, noise, _ in found)
    about = f"flow policy, simulated arms, noise {noise:g}; grey: plain, colour: guided"
    title = "Success above, jump where chunks meet below, by latency"
    drawn = [
        side for (_, sigma, _), sides in found.items() if sigma == noise for side in sides.values()
    ]
    lowest = 5 * (min(_interval(side)[0] for side in drawn) // 5)
    widest = 1.1 * np.nanmax([side.seam for side in drawn])
    with new_figure(path, title, about, panels=len(horizons)) as panels:
        for axis, horizon in zip(np.atleast_1d(panels), horizons, strict=True):
            below = axis.inset_axes((0, -0.75, 1, 0.6), sharex=axis)
            for side, colour in zip(SIDES, (BASELINE, OURS), strict=True):
                mine = [
                    (lead, sides[side])
                    for (rule, sigma, lead), sides in found.items()
                    if (rule, sigma) == (horizon, noise)
                ]
                leads = [lead for lead, _ in mine]
                success = [_success(one) for _, one in mine]
                bars = np.abs(np.array([_interval(one) for _, one in mine]).T - success)
                axis.errorbar(leads, success, bars, fmt="o-", color=colour, label=side, capsize=2)
                below.plot(leads, [one.seam for _, one in mine], "o-", color=colour)
            axis.set_title(horizon.partition(":t=")[0], fontsize=9)
            axis.tick_params(labelbottom=False)
            below.set_xlabel("latency (control periods)")
            axis.set_ylim(lowest, 101)
            below.set_ylim(0, widest)
            below.spines[["top", "right"]].set_visible(False)
        first = np.atleast_1d(panels)[0]
        first.set_ylabel("success (%)")
        first.child_axes[0].set_ylabel("jump (action units)")
        first.legend(frameon=False, loc="lower left")
        first.figure.set_size_inches(3.0 * len(horizons), 4.8)
        first.figure.subplots_adjust(bottom=0.46, left=0.06)


if __name__ == "__main__":
    main()
