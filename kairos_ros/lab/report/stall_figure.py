"""Why robots stood still, per run, as a share of all task time."""

from collections.abc import Sequence

from kairos_ros.lab.metrics import figure_style
from kairos_ros.lab.metrics.stalls import stall_causes
from kairos_ros.lab.report.curves import Figure
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.run_source import NamedRun

_PIXELS_PER_RUN = 34
_LEAST_S = 1e-3
"""Less than this of all robots together is rounding."""


def waits_by_cause(run: FleetRun) -> dict[str, float]:
    """Seconds, by cause; without recorded rounds only the first wait is told from the others."""
    if run.rounds:
        return {cause: s for cause, s in stall_causes(run).items() if s > _LEAST_S}
    first_s = sum(task.first_wait_s for task in run.tasks)
    later_s = sum(task.stalled_s for task in run.tasks) - first_s
    return {"first wait": first_s, "after the first action": max(0.0, later_s)}


def stall_figure(runs: Sequence[NamedRun], waits: Sequence[dict[str, float]]) -> Figure:
    """One bar per run; `waits` in the order of `runs`."""
    time_s = [sum(task.duration_s for task in named.run.tasks) for named in runs]
    names = [named.name for named in runs]
    causes = [cause for cause in figure_style.CAUSES if any(wait.get(cause) for wait in waits)]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": cause,
            "x": [
                round(100 * wait.get(cause, 0.0) / whole, 3) if whole else 0.0
                for wait, whole in zip(waits, time_s, strict=True)
            ],
            "y": names,
            "marker": {"color": figure_style.CAUSES[cause]},
            "hovertext": [
                f"{cause}: {wait.get(cause, 0.0):.1f} s of {whole:.0f} s"
                for wait, whole in zip(waits, time_s, strict=True)
            ],
            "hoverinfo": "text",
        }
        for cause in causes
    ]
    return {
        "data": data,
        "layout": {
            "barmode": "stack",
            "height": 150 + _PIXELS_PER_RUN * len(runs),
            "xaxis": {"title": {"text": "task time spent waiting (%)"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
            "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
        },
    }
