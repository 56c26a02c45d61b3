"""Table, figure and finding of `kairos study rate`."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from kairos_ros.lab.metrics.figure_style import BASELINE, OTHERS, OURS
from kairos_ros.lab.metrics.study_cells import Report, Row, StudyKind
from kairos_ros.lab.rates.study import DECIDES, RateStudy, cells, read_rate_study, run_cell

MINE = "ours"
WITHIN = 0.01
"""Two systems that differ by less are called equal: seeds alone differ by as much."""


def write_report(
    study: RateStudy, rows: Sequence[Row], out: Path, notes: str, report: Report
) -> None:
    """Writes cells.csv, figure.png and finding.md."""
    flat = [{**row.key, "system": row.key["system"]["name"], **row.metrics} for row in rows]
    with (out / "cells.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)
    found = "\n".join([*_finding(study, rows), "", notes, ""])
    (out / "finding.md").write_text(found)
    draw(study, rows, out / "figure.png")
    report(found)
    report(f"{out}/: cells.csv, figure.png, finding.md")


def over_seeds(rows: Sequence[Row], metric: str, system: str, load: float) -> list[float]:
    return [
        row.metrics[metric]
        for row in rows
        if (row.key["system"]["name"], row.key["load"]) == (system, load)
    ]


def _loads(rows: Sequence[Row]) -> list[float]:
    return sorted({row.key["load"] for row in rows})


def verdicts(rows: Sequence[Row], systems: Sequence[str]) -> Iterator[tuple[float, float, str]]:
    """Load, our successes per hour over those of the best other system that has neither of ours,
    and which system that is."""
    others = [name for name in systems if not name.startswith(MINE)]
    for load in _loads(rows):
        ours = median(over_seeds(rows, "successes_per_h", MINE, load))
        best = max(others, key=lambda name: median(over_seeds(rows, "successes_per_h", name, load)))
        yield load, ours / median(over_seeds(rows, "successes_per_h", best, load)), best


def headline(rows: Sequence[Row], systems: Sequence[str]) -> str:
    found = list(verdicts(rows, systems))
    below = [(load, ratio, name) for load, ratio, name in found if ratio < 1 - WITHIN]
    if not below:
        return "Horizons that grow with the load are on or above everything else at every load"
    told = ", ".join(f"{100 * (1 - ratio):.1f} % below {n} at load {x:g}" for x, ratio, n in below)
    return f"Horizons that grow with the load are {told}, and on or above all others elsewhere"


def _finding(study: RateStudy, rows: Sequence[Row]) -> Iterator[str]:
    names = [system.name for system in study.systems]
    loads = _loads(rows)
    robots = [round(median(over_seeds(rows, "robots", names[0], load))) for load in loads]
    yield f"{headline(rows, names)} (equal: within {100 * WITHIN:g} %)."
    yield ""
    yield (
        "Successful tasks per hour (success in %; 99th percentile of the time to an answer). Load "
        "1 is what the robots would ask for with tuned horizons over what the engine does."
    )
    yield ""
    head = [f"load {load:g}, {n} robots" for load, n in zip(loads, robots, strict=True)]
    yield f"| | {' | '.join(head)} |"
    yield f"|---|{'---|' * len(loads)}"
    for name in names:
        told = []
        for load in loads:
            per_h, success, p99 = (
                median(over_seeds(rows, metric, name, load))
                for metric in ("successes_per_h", "success", "latency_p99_s")
            )
            told.append(f"{per_h:.0f} ({100 * success:.1f}; {p99:.2f} s)")
        yield f"| {name} | {' | '.join(told)} |"
    yield ""
    yield "Ours against the best of the others:"
    yield ""
    for load, ratio, best in verdicts(rows, names):
        yield f"- load {load:g}: {ratio:.3f} of {best}"


def draw(study: RateStudy, rows: Sequence[Row], path: Path) -> None:
    """Successes per hour, and the 99th percentile of the time to an answer, over load."""
    from matplotlib.figure import Figure

    loads = _loads(rows)
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    colours = iter(OTHERS)
    for system in study.systems:
        mine, plain = system.name.startswith(MINE), system.name == study.systems[0].name
        colour = OURS if mine else BASELINE if plain else next(colours)
        dashes = "--" if system.rate_control else "-"
        for axes, metric in zip(panels, ("successes_per_h", "latency_p99_s"), strict=True):
            values = [median(over_seeds(rows, metric, system.name, load)) for load in loads]
            width = 2.4 if mine else 1.4
            axes.plot(
                loads, values, dashes, marker="o", ms=3, lw=width, color=colour, label=system.name
            )
    panels[0].set_ylabel("successful tasks per hour")
    panels[1].set_ylabel("99th percentile of the time to an answer, s")
    for axes in panels:
        axes.set_xlabel("load: rounds asked for with tuned horizons / engine's most")
        axes.set_ylim(0, None)
        axes.spines[["top", "right"]].set_visible(False)
    names = [system.name for system in study.systems]
    figure.suptitle(headline(rows, names), fontsize=10, x=0.01, ha="left")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


RATE_STUDY = StudyKind(read_rate_study, cells, run_cell, write_report, DECIDES)
