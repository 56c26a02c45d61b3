"""The picture of a study: small multiples of lines, medians over seeds with their whole spread."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from kairos_ros.lab.metrics.figure_style import BASELINE, OURS
from kairos_ros.lab.study.definition import Figure, Study, Value
from kairos_ros.lab.study.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.layout_engine import ConstrainedLayoutEngine

TITLE_LETTERS = 8.5
LEGEND_LETTERS = 10.5
"""That fit into an inch."""
MARKERS = "osD^vP*X"
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1, 1, 1)), (0, (7, 3)))
"""Baselines, and ours, tell lines apart by these and by markers; colour tells whose they are."""


@dataclass(frozen=True, slots=True)
class _Style:
    colour: str
    dash: Any
    marker: str
    bold: bool


def draw_study(path: Path, study: Study, frame: pd.DataFrame, title: str, subtitle: str) -> None:
    """Writes a PNG. title: the finding. frame: `table.tidy`, not empty."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    spec = study.figure
    bars = spec.kind == "bars"
    columns = _values(frame, spec.columns)
    rows: Sequence[Value] = _values(frame, spec.rows) if spec.rows else spec.y
    width = max(7.2, 1.2 + 3.05 * len(columns))
    headline = textwrap.wrap(_capital(title).replace(" %", "\u00a0%"), round(TITLE_LETTERS * width))
    figure, axes = pyplot.subplots(
        len(rows),
        len(columns),
        figsize=(width, 1.7 + 0.25 * len(headline) + 2.75 * len(rows)),
        sharex=not bars,
        sharey="row" if spec.relative_to is not None and not bars else False,
        squeeze=False,
        layout="constrained",
    )
    styles = _styles(spec, _values(frame, spec.x if bars else spec.lines))
    positions = _positions(_values(frame, spec.x))
    for (r, row), (c, column) in ((a, b) for a in enumerate(rows) for b in enumerate(columns)):
        ax, cells = axes[r][c], _only(frame, spec.columns, column)
        cells, y = (_only(cells, spec.rows, row), spec.y[0]) if spec.rows else (cells, str(row))
        (_bars if bars else _lines)(ax, spec, cells, y, styles, positions)
        heading = [str(column)] if spec.columns and r == 0 else []
        heading += [f"{row} {spec.rows.replace('_', ' ')}"] if spec.rows else []
        ax.set_title(" · ".join(heading), loc="left", fontsize=9.5)
        value, category = _y_label(spec, y), spec.x_label or spec.x.replace("_", " ")
        if c == 0:
            ax.set_ylabel("" if bars else value)
        if r == len(rows) - 1 or bars:
            ax.set_xlabel(value if bars else category)
        if c > 0 and bars:
            ax.set_yticklabels([])
    handles, labels = axes[0][0].get_legend_handles_labels()
    if len(labels) > 1:
        side_by_side = min(len(labels), max(1, int(LEGEND_LETTERS * width / _longest(labels))))
        figure.legend(
            handles, labels, loc="outside lower center", ncols=side_by_side, frameon=False
        )
    # the subtitle is a last line of the title, smaller: constrained layout knows only one of them
    figure.suptitle("\n".join([*headline, ""]), fontsize=13, x=0.01, ha="left")
    below = 1 - (0.10 + 0.235 * len(headline)) / figure.get_figheight()
    figure.text(0.01, below, subtitle, fontsize=9, va="top", color="#555555")
    layout = cast("ConstrainedLayoutEngine", figure.get_layout_engine())
    layout.set(h_pad=0.08, w_pad=0.08)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _lines(
    ax: "Axes",
    spec: Figure,
    cells: pd.DataFrame,
    y: str,
    styles: Mapping[Value, _Style],
    positions: Mapping[Value, float],
) -> None:
    for label, style in styles.items():
        medians, low, high = _spread(spec, _only(cells, spec.lines, label), y)
        if medians.empty:
            continue
        at = [positions[x] for x in medians.index]
        ax.fill_between(at, low, high, color=style.colour, alpha=0.13, linewidth=0)
        ax.plot(
            at,
            medians,
            color=style.colour,
            linestyle=style.dash,
            marker=style.marker,
            markersize=5 if style.bold else 3.5,
            linewidth=2.4 if style.bold else 1.3,
            alpha=1.0 if style.bold else 0.75,
            label=str(label) if isinstance(label, str) else f"{spec.lines} {label}",
        )
    if spec.log_y:
        ax.set_yscale("log")
        from matplotlib.ticker import LogLocator

        ax.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        for name_ticks in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
            name_ticks("{x:g}")  # not powers of ten: few panels span a whole one
    elif spec.relative_to is None:
        ax.set_ylim(bottom=0)
    if not _numeric(list(positions)):
        ax.set_xticks(list(positions.values()), [str(x) for x in positions])
        if _long(list(positions)):
            for text in ax.get_xticklabels():
                text.set(rotation=30, ha="right", rotation_mode="anchor")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


def _bars(
    ax: "Axes",
    spec: Figure,
    cells: pd.DataFrame,
    y: str,
    styles: Mapping[Value, _Style],
    positions: Mapping[Value, float],
) -> None:
    """Median as a bar, the range over seeds as a whisker, the number behind it."""
    medians, low, high = _spread(spec, cells, y)
    for x, median in medians.items():
        at = -positions[x]  # the first one on top
        ax.barh(at, median, height=0.72, color=styles[x].colour)
        ax.plot([low[x], high[x]], [at, at], color="#222222", linewidth=1)
        ax.text(high[x], at, f" {median:.3g}", va="center", fontsize=7.5, color="#444444")
    ax.set_yticks([-at for at in positions.values()], [str(x) for x in positions])
    ax.margins(x=0.14)
    ax.set_xlim(left=0)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _spread(
    spec: Figure, cells: pd.DataFrame, y: str
) -> tuple["pd.Series[float]", "pd.Series[float]", "pd.Series[float]"]:
    """Median, least and greatest over seeds by x, in the unit that is shown."""
    if spec.relative_to is not None:
        cells = _relative(cells, spec, y)
    factor = METRICS[y].scale if spec.relative_to is None else 1.0
    groups = cells.groupby(spec.x, sort=False)[y]
    medians = groups.median().dropna() * factor
    return medians, groups.min()[medians.index] * factor, groups.max()[medians.index] * factor


def _relative(line: pd.DataFrame, spec: Figure, y: str) -> pd.DataFrame:
    """In percent of the same seed's value at the reference."""
    reference = line[line[spec.x] == spec.relative_to].set_index("seed")[y]
    return line.assign(**{y: 100 * line[y] / line["seed"].map(reference)})


def _y_label(spec: Figure, y: str) -> str:
    if spec.relative_to is None:
        return METRICS[y].axis
    name = "" if spec.kind == "bars" else f"{spec.x.replace('_', ' ')} "
    return f"{METRICS[y].label}\n(% of {name}{spec.relative_to})"


def _styles(spec: Figure, lines: Sequence[Value]) -> dict[Value, _Style]:
    looks = {grey: zip(cycle(DASHES), cycle(MARKERS), strict=False) for grey in (True, False)}
    styles = {}
    for label in lines:
        grey = label in spec.baseline
        dash, marker = next(looks[grey])
        bold = label in spec.bold or len(lines) == 1
        styles[label] = _Style(BASELINE if grey else OURS, dash, marker, bold)
    return styles


def _positions(values: Sequence[Value]) -> dict[Value, float]:
    """Numbers stand where they are, everything else side by side."""
    if _numeric(values):
        return {value: float(value) for value in values}  # type: ignore[arg-type]
    return {value: float(i) for i, value in enumerate(values)}


def _numeric(values: Sequence[Value]) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def _long(values: Sequence[Value]) -> bool:
    return sum(len(str(v)) for v in values) > 24


def _longest(labels: Sequence[str]) -> int:
    return max(map(len, labels)) + 8  # the line before the label is as wide as eight letters


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _values(frame: pd.DataFrame, name: str | None) -> list[Value]:
    return [None] if name is None else list(dict.fromkeys(frame[name].tolist()))


def _only(frame: pd.DataFrame, name: str | None, value: Value) -> pd.DataFrame:
    return frame if name is None else frame[frame[name] == value]
