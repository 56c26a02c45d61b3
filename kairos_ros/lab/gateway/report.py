"""Table, figure and finding of `kairos study gateway`."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from kairos_ros.lab.gateway.study import DECIDES, GatewayStudy, cells, read_gateway_study, run_cell
from kairos_ros.lab.metrics.figure_style import BASELINE, OTHERS, OURS
from kairos_ros.lab.metrics.study_cells import Report, Row, StudyKind


def write_report(
    study: GatewayStudy, rows: Sequence[Row], out: Path, notes: str, report: Report
) -> None:
    """Writes cells.csv, figure.png and finding.md."""
    plain = ("askers", "server")
    flat = [
        {k: v for k, v in row.key.items() if k not in plain}
        | {"system": row.key["system"]["name"], **row.metrics}
        for row in rows
    ]
    with (out / "cells.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(k for one in flat for k in one)))
        writer.writeheader()
        writer.writerows(flat)
    found = "\n".join([*_finding(study, rows), "", notes, ""])
    (out / "finding.md").write_text(found)
    draw(study, rows, out / "figure.png")
    report(found)
    report(f"{out}/: cells.csv, figure.png, finding.md")


def middle(rows: Sequence[Row], metric: str, system: str, robots: int) -> float:
    """Median over seeds; NaN where it was not measured in any."""
    found = [
        row.metrics.get(metric)
        for row in rows
        if (row.key["system"]["name"], row.key["robots"]) == (system, robots)
    ]
    measured = [one for one in found if one is not None]
    return median(measured) if measured else math.nan


def headline(study: GatewayStudy, rows: Sequence[Row]) -> str:
    baseline = study.systems[0].name
    gains = [
        (middle(rows, "attained", study.default, n) - middle(rows, "attained", baseline, n), n)
        for n in _robots(rows)
    ]
    most, at = max(gains)
    least, at_least = min(gains)
    return (
        f"{study.default} against {baseline}: {100 * most:+.1f} points of objectives kept at"
        f" {at} robots (the most), {100 * least:+.1f} at {at_least} (the least)"
    )


def _robots(rows: Sequence[Row]) -> list[int]:
    return sorted({row.key["robots"] for row in rows})


def _finding(study: GatewayStudy, rows: Sequence[Row]) -> Iterator[str]:
    robots = _robots(rows)
    components = [name for name in study.components if f"{name}_attained" in rows[0].metrics]
    yield f"{headline(study, rows)}."
    yield ""
    yield "The servers are assumed, not measured; the study file says how fast they are."
    yield ""
    yield "Objectives kept in time, % of all questions (the component with the fewest):"
    yield ""
    yield f"| robots | {' | '.join(map(str, robots))} |"
    yield f"|---|{'---|' * len(robots)}"
    for system in study.systems:
        told = []
        for n in robots:
            kept, worst = (
                100 * middle(rows, metric, system.name, n)
                for metric in ("attained", "worst_attained")
            )
            told.append(f"{kept:.1f} ({worst:.0f})")
        yield f"| {system.name} | {' | '.join(told)} |"
    for title, metric, unit in (
        *((f"{name}: objectives kept, %", f"{name}_attained", 100.0) for name in components),
        *((f"{name}: 50th percentile, ms", f"{name}_p50_s", 1e3) for name in components),
        *((f"{name}: 99th percentile, ms", f"{name}_p99_s", 1e3) for name in components),
        ("Workflows that ended, per minute", "workflows_per_min", 1.0),
        ("Mean time of a workflow that ended, ms", "workflow_mean_s", 1e3),
        ("Preemptions by servers without memory", "preemptions", 1.0),
    ):
        yield ""
        yield f"{title}:"
        yield ""
        yield f"| robots | {' | '.join(map(str, robots))} |"
        yield f"|---|{'---|' * len(robots)}"
        for system in study.systems:
            values = [unit * middle(rows, metric, system.name, n) for n in robots]
            told = [f"{value:.0f}" if math.isfinite(value) else "–" for value in values]
            yield f"| {system.name} | {' | '.join(told)} |"


def draw(study: GatewayStudy, rows: Sequence[Row], path: Path) -> None:
    """Objectives kept, and workflows that ended, over robots."""
    from matplotlib.figure import Figure

    robots = _robots(rows)
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    panels = figure.subplots(1, 2)
    others = iter(OTHERS * 3)
    for number, system in enumerate(study.systems):
        mine = system.name == study.default
        colour = OURS if mine else BASELINE if number == 0 else next(others)
        for axes, metric, unit in zip(
            panels, ("attained", "workflows_per_min"), (100.0, 1.0), strict=True
        ):
            values = [unit * middle(rows, metric, system.name, n) for n in robots]
            axes.plot(
                robots, values, "-" if system.dispatch != "round_robin" else "--", marker="o", ms=3,
                lw=2.4 if mine or number == 0 else 1.2, color=colour, label=system.name,
            )  # fmt: skip
    panels[0].set_ylabel("objectives kept in time, % of all questions")
    panels[1].set_ylabel("workflows that ended, per minute")
    for axes in panels:
        axes.set_xlabel("robots")
        axes.set_ylim(0, None)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(headline(study, rows), fontsize=10, x=0.01, ha="left")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


GATEWAY_STUDY = StudyKind(read_gateway_study, cells, run_cell, write_report, DECIDES)
