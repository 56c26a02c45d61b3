"""Files and findings of this package's studies, with Dai et al.'s numbers beside ours."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.faults import read_document, read_model
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PaperSize(_Section):
    """How much is run."""

    episodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Of each task; what they are of is the study's."""
    tasks: list[str] = list(SCENES)


class PaperStudy(_Section):
    """The content of a study file of this package."""

    kind: str
    question: str
    policy: str
    paper: dict[str, str]
    """What Dai et al. give, by what is measured."""
    differs: str
    """From Dai et al.'s experiment."""
    sizes: dict[str, PaperSize]

    def size(self, name: str, config: Path) -> PaperSize:
        if name not in self.sizes:
            raise ConfigError(f"{config}: sizes has no {name!r}, only {', '.join(self.sizes)}")
        return self.sizes[name]


@dataclass(frozen=True, slots=True)
class Row:
    """One number of ours; `what` is a key of the file's `paper` where Dai et al. give it, too."""

    what: str
    ours: str


def read_paper_study(config: Path) -> PaperStudy:
    """Raises FaultyFileError with line, column and field of everything that is wrong, ConfigError
    for a file that cannot be read, and for unknown tasks."""
    study = read_model(config, read_document(config), PaperStudy)
    for size in study.sizes.values():
        if unknown := [task for task in size.tasks if task not in SCENES]:
            raise ConfigError(f"{config}: no task {unknown[0]!r}; known are {', '.join(SCENES)}")
    return study


def write_finding(
    out: Path, study: PaperStudy, sentence: str, rows: Sequence[Row], command: str
) -> str:
    """Writes `finding.md`; returns its text."""
    lines = [f"*{study.question.strip()}* {sentence}", "", "| | ours | theirs |", "|---|---|---|"]
    lines += [f"| {row.what} | {row.ours} | {study.paper.get(row.what, '-')} |" for row in rows]
    lines += ["", f"What differs from Dai et al.: {study.differs.strip()}", "", f"`{command}`", ""]
    out.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines)
    (out / "finding.md").write_text(text)
    return text


def write_rows(out: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes `cells.csv`: one line per row, all with the same columns."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "cells.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw_cdf(
    path: Path,
    curves: Mapping[str, Sequence[float]],
    *,
    title: str,
    x_label: str,
    of: str,
    grey: Sequence[str] = (),
    log_x: bool = False,
    x_limit: float | None = None,
) -> None:
    """PNG: the share of values up to x; curves named in `grey` are baselines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for number, (name, values) in enumerate(curves.items()):
        _step(axes, name, values, BASELINE if name in grey else OURS, DASHES[number % len(DASHES)])
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(f"share of {of} (%)")
    axes.set_ylim(0, 101)
    if x_limit is not None:
        axes.set_xlim(right=x_limit)
    if log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1:
        axes.legend(frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1, 1, 1)), (0, (7, 3)))


def _step(axes: "Axes", name: str, values: Sequence[float], colour: str, dash: object) -> None:
    ordered = np.sort(np.asarray(values, float))
    share = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
    x = np.concatenate([ordered[:1], ordered])
    y = np.concatenate([[0.0], share])
    axes.step(x, y, where="post", label=name, color=colour, linestyle=dash)


def share(values: Sequence[bool] | np.ndarray) -> str:
    """`41.7 % of 12`."""
    return f"{100 * float(np.mean(values)):.1f} % of {len(values)}" if len(values) else "-"
