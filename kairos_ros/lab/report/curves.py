"""Figures of distributions: how long things took, how old observations were."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kairos_ros.lab.metrics import figure_style
from kairos_ros.lab.metrics.slo import CountedActions, Slo
from kairos_ros.recording.runs.observation_age import observation_ages_s
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_source import NamedRun

MOST_POINTS = 250
"""Of one curve; more values are thinned to evenly spaced quantiles."""

_ROUND_MS = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]

Figure = dict[str, Any]
"""`data` and `layout` as plotly.js takes them; the page adds fonts and colours of its theme.

Where there is a list `texts`, a trace's `texts` are indices into it that become its `hovertext`.
"""


def latency_figures(runs: Sequence[NamedRun], colours: Sequence[str]) -> list[Figure]:
    """Cumulative distributions; those that no run has data for are left out."""
    wanted = (
        ("task latency, first request to last action (s)", "tasks", _task_latency),
        ("chunk latency, request to chunk (ms)", "chunks", _chunk_latency),
        ("age of the observation at execution (ms)", "actions", _ages),
    )
    figures = []
    for label, what, values_of in wanted:
        data = [
            _distribution(named.name, colour, values_of(named.run))
            for named, colour in zip(runs, colours, strict=False)
        ]
        data = [trace for trace in data if trace["x"]]
        if data:
            figures.append(
                {"data": data, "layout": axes(label, f"{what} within it (%)", y_range=(0, 101))}
            )
    return figures


def horizon_distribution(runs: Sequence[NamedRun], colours: Sequence[str]) -> Figure:
    """How many actions of a chunk were executed, over all chunks that had any."""
    data = [
        _distribution(
            named.name,
            colour,
            np.array([n for t in named.run.tasks for n in t.round_executed if n], float),
        )
        for named, colour in zip(runs, colours, strict=False)
    ]
    return {
        "data": [trace for trace in data if trace["x"]],
        "layout": axes("actions executed of one chunk", "chunks (%)", y_range=(0, 101)),
    }


def qualified_figure(runs: Sequence[NamedRun], colours: Sequence[str], chosen: Slo) -> Figure:
    """Qualified actions per second over the SLO, up to four times the chosen one."""
    steps_s = chosen.latency_s * np.geomspace(1 / 8, 4, 41)
    data = []
    for named, colour in zip(runs, colours, strict=False):
        counted = CountedActions.of(named.run)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": named.name,
                "x": (1000 * steps_s).round(2).tolist(),
                "y": [round(counted.throughput(s).qualified_per_s, 3) for s in steps_s.tolist()],
                "line": {"color": colour, "width": 2},
            }
        )
    layout = axes("SLO for a chunk (ms)", "qualified actions (1/s)")
    layout["xaxis"]["type"] = "log"
    layout["xaxis"] |= {"tickmode": "array", "tickvals": _ROUND_MS, "ticktext": _ROUND_MS}
    layout["shapes"] = [
        {
            "type": "line",
            "x0": 1000 * chosen.latency_s,
            "x1": 1000 * chosen.latency_s,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"dash": "dot", "width": 1, "color": figure_style.BASELINE},
        }
    ]
    return {"data": data, "layout": layout}


def axes(x: str, y: str, *, y_range: tuple[float, float] | None = None) -> dict[str, Any]:
    """Layout of a figure with named axes that start at zero."""
    return {
        "xaxis": {"title": {"text": x}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero"}
        | ({"range": list(y_range)} if y_range else {}),
    }


def _distribution(name: str, colour: str, values: np.ndarray) -> dict[str, Any]:
    values = np.sort(values[np.isfinite(values)])
    shares: np.ndarray = np.arange(1, len(values) + 1) / max(1, len(values))
    if len(values) > MOST_POINTS:
        shares = np.linspace(0, 1, MOST_POINTS)
        values = np.quantile(values, shares)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [float(f"{value:.5g}") for value in values],
        "y": (100 * shares).round(2).tolist(),
        "line": {"shape": "hv", "color": colour, "width": 2},
    }


def _task_latency(run: FleetRun) -> np.ndarray:
    return np.array([task.duration_s for task in run.tasks if task.finished])


def _chunk_latency(run: FleetRun) -> np.ndarray:
    return 1000 * np.array([s for t in run.tasks if t.finished for s in t.round_latency_s])


def _ages(run: FleetRun) -> np.ndarray:
    return 1000 * observation_ages_s(run.rounds)
