"""Table, figure and finding of `kairos study factory`."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kairos_ros.core.pipeline import Component
from kairos_ros.lab.factory.study import (
    DECIDES,
    SHARED,
    FactoryStudy,
    cells,
    label,
    over_seeds,
    read_factory_study,
    run_cell,
)
from kairos_ros.lab.metrics.study_cells import Report, Row, StudyKind

OURS = "#1f77b4"
TIME_SHARED = "its models are assumed to share its time without loss; that of Rosa serves no P4"
STYLES: Mapping[str, dict[str, Any]] = {
    "planned": {"color": OURS, "lw": 2.2},
    "equal": {"color": "0.55", "ls": "-"},
    "weighted": {"color": "0.55", "ls": "--"},
    "gpu_per_robot": {"color": "0.75", "ls": "-."},
    "gpu_per_model": {"color": "0.75", "ls": ":"},
}


def write_report(
    study: FactoryStudy, rows: Sequence[Row], out: Path, notes: str, report: Report
) -> None:
    """Writes cells.csv, figure.png and finding.md."""
    _write_table(rows, out / "cells.csv")
    found = "\n".join([*_finding(study, rows), "", notes, ""])
    (out / "finding.md").write_text(found)
    draw(study, rows, out / "figure.png")
    report(found)
    report(f"{out}/: cells.csv, figure.png, finding.md")


def _write_table(rows: Sequence[Row], path: Path) -> None:
    names = list(dict.fromkeys(name for row in rows for name in (*row.key, *row.metrics)))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({**row.key, **row.metrics} for row in rows)


def _varied(rows: Sequence[Row], name: str) -> list[Any]:
    return list(dict.fromkeys(row.key[name] for row in rows))


def peak(rows: Sequence[Row], systems: Sequence[str], **where: Any) -> tuple[float, int, str]:
    """The most qualified actions/s of these systems at any number of robots: how many, at how many
    robots, of which."""
    every = [
        (over_seeds(rows, "qualified_hz", system=system, robots=robots, **where), robots, system)
        for system in systems
        for robots in _varied(rows, "robots")
    ]
    return max((one for one in every if not math.isnan(one[0])), default=(math.nan, 0, ""))


def _finding(study: FactoryStudy, rows: Sequence[Row]) -> Iterator[str]:
    if any(row.metrics["assumed"] for row in rows):
        yield "All profiles are assumed (config/profiles), so every row below is."
        yield ""
    for execution in _varied(rows, "execution"):
        yield f"## Robots with {execution} execution"
        yield ""
        yield (
            "Most SLO-qualified actions/s at any number of robots (in brackets), and how much more "
            "that is than the best shared and the best dedicated baseline:"
        )
        yield ""
        yield "| | our plan | best shared | | one GPU per model | | one GPU per robot | |"
        yield "|---|---|---|---|---|---|---|---|"
        for fleet in _varied(rows, "fleet"):
            where = {"fleet": fleet, "execution": execution}
            ours, robots, _ = peak(rows, ["planned"], **where)
            told = [f"{fleet} (assumed)", f"{ours:.1f} ({robots})"]
            for systems in (SHARED, ["gpu_per_model"], ["gpu_per_robot"]):
                theirs, at, which = peak(rows, systems, **where)
                name = f" {which}" if len(systems) > 1 else ""
                told += [f"{theirs:.1f} ({at}{name})", f"{_ratio(ours, theirs)}"]
            yield f"| {' | '.join(told)} |"
        yield ""
        yield from _goals(study, rows, execution)
        yield from _by_robots(rows, execution)


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}x" if theirs else "theirs is 0"


def _goals(study: FactoryStudy, rows: Sequence[Row], execution: str) -> Iterator[str]:
    compared: tuple[tuple[str, Sequence[str], float], ...] = (
        ("the best shared baseline", SHARED, study.goals.shared),
        ("one GPU per model", ["gpu_per_model"], study.goals.dedicated),
        (f"one GPU per robot ({TIME_SHARED})", ["gpu_per_robot"], study.goals.dedicated),
    )
    for name, systems, goal in compared:
        ratios = []
        for fleet in _varied(rows, "fleet"):
            where = {"fleet": fleet, "execution": execution}
            theirs = peak(rows, systems, **where)[0]
            if theirs:
                ratios.append((peak(rows, ["planned"], **where)[0] / theirs, fleet))
        if ratios:
            ratio, fleet = max(ratios)
            verdict = "reached" if ratio >= goal else "missed"
            yield f"- up to {ratio:.2f}x {name}, on {fleet}; goal {goal:g}x: {verdict}"
    within = over_seeds(
        rows, "system1_within_slo", system="planned", fleet="p4", robots=32, execution=execution
    )
    if not math.isnan(within):
        verdict = "reached" if within >= study.goals.within_slo else "missed"
        yield (
            f"- {100 * within:.2f} % of System 1's answers within the SLO at 32 robots on P4; goal "
            f"{100 * study.goals.within_slo:g} %: {verdict}"
        )
    yield ""


def _by_robots(rows: Sequence[Row], execution: str) -> Iterator[str]:
    """Every system at every number of robots."""
    robots = _varied(rows, "robots")
    for fleet in _varied(rows, "fleet"):
        mine = [r for r in rows if (r.key["fleet"], r.key["execution"]) == (fleet, execution)]
        yield f"{fleet}: qualified actions/s (answers of System 1 within the SLO; GPUs of System "
        yield "1:System 2:safety:monitor)"
        yield ""
        yield f"| | {' | '.join(f'{n} robots' for n in robots)} |"
        yield f"|---|{'---|' * len(robots)}"
        for system in _varied(mine, "system"):
            told = []
            for n in robots:
                where = {"system": system, "robots": n}
                hz = over_seeds(mine, "qualified_hz", **where)
                within = over_seeds(mine, f"{Component.SYSTEM1}_within_slo", **where)
                split = next(
                    (r.metrics["split"] for r in mine
                     if (r.key["system"], r.key["robots"]) == (system, n)), "",
                )  # fmt: skip
                told.append(
                    "cannot serve" if not split else f"{hz:.1f} ({100 * within:.1f} %; {split})"
                )
            yield f"| {label(system)} | {' | '.join(told)} |"
        yield ""


def _gains(rows: Sequence[Row]) -> str:
    """The least and the most that our plan gains over the best shared baseline."""
    ratios = []
    for fleet in _varied(rows, "fleet"):
        for execution in _varied(rows, "execution"):
            where = {"fleet": fleet, "execution": execution}
            if theirs := peak(rows, SHARED, **where)[0]:
                ratios.append(peak(rows, ["planned"], **where)[0] / theirs)
    if not ratios:
        return "more than"  # which has none
    least, most = f"{min(ratios):.2f}x", f"{max(ratios):.2f}x"
    return least if least == most else f"{least} to {most}"


def draw(study: FactoryStudy, rows: Sequence[Row], path: Path) -> None:
    """Qualified actions/s over robots, by workload and execution."""
    from matplotlib.figure import Figure

    fleets, executions = _varied(rows, "fleet"), _varied(rows, "execution")
    size = max(10.5, 3.1 * len(fleets)), 2.8 * len(executions) + 0.9
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(executions), len(fleets), squeeze=False, sharex=True)
    for execution, line in zip(executions, panels, strict=True):
        for fleet, axes in zip(fleets, line, strict=True):
            for system in study.systems:
                where = {"system": system, "fleet": fleet, "execution": execution}
                robots = _varied(rows, "robots")
                hz = [over_seeds(rows, "qualified_hz", robots=n, **where) for n in robots]
                axes.plot(robots, hz, marker="o", ms=3, label=label(system), **STYLES[system])
            axes.set_title(f"{fleet}, {execution}", fontsize=9)
            axes.set_xscale("log", base=2)
            axes.set_xticks(_varied(rows, "robots"), map(str, _varied(rows, "robots")))
            axes.set_ylim(0, None)
            axes.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel("qualified actions/s")
    for axes in panels[-1]:
        axes.set_xlabel("robots")
    figure.suptitle(
        f"SLO-qualified actions: our plan has {_gains(rows)} those of the best shared baseline "
        "(all profiles assumed)",
        fontsize=11, x=0.01, ha="left",
    )  # fmt: skip
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


FACTORY_STUDY = StudyKind(read_factory_study, cells, run_cell, write_report, DECIDES)
