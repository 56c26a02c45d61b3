"""The pictures of a run: what every arm did when, how long tasks took, what succeeded."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kairos_ros.lab.metrics.figure_style import (
    BASELINE,
    DOWN,
    FAINT_INK,
    IDLE,
    INK,
    OURS,
    PALE,
    STALLED,
)
from kairos_ros.recording.runs.run import FleetRun, TaskRecord
from kairos_ros.recording.runs.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACTIVITIES = {"executing": OURS, "holding": STALLED, "idle": IDLE, "down": DOWN}
_LABELS = {
    "executing": "executing",
    "holding": "in a task, waiting for actions",
    "idle": "no task, or building its scene",
    "down": "process gone",
}


def plot_fleet(path: Path, run: FleetRun, summary: Summary, configuration: str) -> None:
    """Timeline of the fleet, latency distribution and success per task of one run, as PNG."""
    figure, axes = _mosaic(
        "TT\nLS", height=4.6 + 0.27 * len(run.robots), ratios=[0.9 + 0.27 * len(run.robots), 3]
    )
    _title(figure, finding(summary, len(run.robots)), configuration)
    _timeline(axes["T"], run)
    done = [task for task in run.tasks if task.finished]
    _latency(axes["L"], [("", OURS, done)])
    _success(axes["S"], [("", OURS, summary)])
    _save(figure, path)


def plot_comparison(
    path: Path,
    title: str,
    configuration: str,
    ours: tuple[FleetRun, Summary],
    baseline: tuple[FleetRun, Summary],
) -> None:
    """Latency, waiting and success of two configurations on the same tasks, as PNG."""
    figure, axes = _mosaic("LLBSS", height=4.6)
    _title(figure, title, configuration)
    pairs = [("ours", OURS, *ours), ("baseline", BASELINE, *baseline)]
    done = [(name, c, [t for t in run.tasks if t.finished]) for name, c, run, _ in pairs]
    _latency(axes["L"], done)
    _waiting(axes["B"], done)
    _success(axes["S"], [(name, colour, summary) for name, colour, _, summary in pairs])
    _save(figure, path)


def finding(summary: Summary, robots: int) -> str:
    """What the run showed, in one line."""
    if not summary.tasks or summary.stall_fraction is None or summary.latency_s is None:
        return f"{robots} arms, no task finished"
    return (
        f"{robots} arms, {summary.tasks} tasks: {summary.succeeded} succeeded, "
        f"{summary.latency_s.mean:.1f} s each, {100 * summary.stall_fraction:.1f} % of it waiting"
    )


def _mosaic(layout: str, *, height: float, ratios: Sequence[float] | None = None) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = layout.split("\n")
    return pyplot.subplot_mosaic(
        [list(row) for row in rows],
        figsize=(12, height),
        layout="constrained",
        height_ratios=ratios,
    )


def _title(figure: Any, finding: str, configuration: str) -> None:
    figure.suptitle(finding + "\n", fontsize=14, x=0.01, ha="left")
    figure.text(
        0.01, 0.985, "\n" + configuration, fontsize=9.5, va="top", linespacing=2.1, color=FAINT_INK
    )


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.get_layout_engine().set(h_pad=0.1, w_pad=0.1)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_spans(
    ax: "Axes", spans: Sequence[tuple[int, float, float]], colour: str, label: str
) -> None:
    """Bars of one kind, each (row, from, to) in seconds; nothing in the legend without any."""
    if spans:
        ax.barh(
            [row for row, _, _ in spans],
            [end_s - start_s for _, start_s, end_s in spans],
            left=[start_s for _, start_s, _ in spans],
            height=0.62,
            color=colour,
            label=label,
        )


def _timeline(ax: "Axes", run: FleetRun) -> None:
    row = {robot: i for i, robot in enumerate(run.robots)}
    for activity, colour in _ACTIVITIES.items():
        spans = [
            (row[s.robot], s.start_s, s.end_s)
            for s in run.spans
            if s.activity == activity and s.robot in row
        ]
        draw_spans(ax, spans, colour, _LABELS[activity])
    for marker, label, success in ((".", "task succeeded", True), ("x", "task failed", False)):
        ends = [t for t in run.tasks if t.finished and t.success == success and t.robot in row]
        if ends:
            ax.plot(
                [t.ended_s for t in ends],
                [row[t.robot] - 0.42 for t in ends],
                marker,
                color=INK,
                markersize=5,
                label=label,
                clip_on=False,
            )
    ax.set(xlim=(0, run.length_s or 1), ylim=(len(row) - 0.4, -0.75), xlabel="time since start (s)")
    ax.set_yticks(range(len(row)), list(row))
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    if run.spans:
        ax.legend(
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=6,
            frameon=False,
            fontsize=9,
            handlelength=1,
        )


def _latency(ax: "Axes", groups: Sequence[tuple[str, str, list[TaskRecord]]]) -> None:
    """Cumulative share of tasks over end-to-end latency, with the median and the P95 marked."""
    for name, colour, tasks in groups:
        seconds = sorted(task.duration_s for task in tasks)
        if not seconds:
            continue
        shares = [100 * (i + 1) / len(seconds) for i in range(len(seconds))]
        ax.step([0, *seconds], [0, *shares], where="post", color=colour, linewidth=2, label=name)
    if len(groups) == 1 and groups[0][2]:
        seconds = sorted(task.duration_s for task in groups[0][2])
        ax.plot(seconds, [1.5] * len(seconds), "|", color=OURS, alpha=0.6, markersize=7)
    if len(groups) > 1:
        ax.legend(frameon=False, loc="lower right")
    ax.set(
        xlabel="end-to-end latency of a task (s)",
        ylabel="tasks done within it (%)",
        ylim=(0, 101),
    )
    ax.set_xlim(left=0)
    ax.set_title("first request to last action", loc="left", fontsize=10)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


def _success(ax: "Axes", groups: Sequence[tuple[str, str, Summary]]) -> None:
    scenes = sorted({scene for _, _, summary in groups for scene in summary.scenes}, reverse=True)
    height = 0.8 / len(groups)
    for g, (_, colour, summary) in enumerate(groups):
        for y, scene in enumerate(scenes):
            result = summary.scenes.get(scene)
            if result is None:
                continue
            at = y + 0.4 - height * (g + 0.5)
            ax.barh(at, 100, height=height * 0.85, color=PALE, zorder=0)
            ax.barh(at, 100 * result.succeeded / result.tasks, height=height * 0.85, color=colour)
            ax.text(
                102,
                at,
                f"{result.succeeded}/{result.tasks}",
                va="center",
                fontsize=8,
                color=FAINT_INK,
            )
    ax.set_yticks(range(len(scenes)), [scene.removesuffix("-v3") for scene in scenes])
    ax.set(xlim=(0, 112), xlabel="success (% of finished tasks)")
    ax.set_xticks(range(0, 101, 25))
    ax.set_title("success per task", loc="left", fontsize=10)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _waiting(ax: "Axes", groups: Sequence[tuple[str, str, list[TaskRecord]]]) -> None:
    """Share of task time without motion: pale for the first wait, solid for the rest."""
    for i, (_, colour, tasks) in enumerate(groups):
        time_s = sum(t.duration_s for t in tasks)
        if not time_s:
            continue
        first = 100 * sum(t.first_wait_s for t in tasks) / time_s
        total = 100 * sum(t.stalled_s for t in tasks) / time_s
        ax.bar(i, total - first, color=colour, width=0.6)
        ax.bar(i, first, bottom=total - first, color=colour, alpha=0.4, width=0.6)
        ax.text(i, total, f"{total:.1f} %", ha="center", va="bottom")
    ax.set_xticks(range(len(groups)), [name for name, _, _ in groups])
    ax.set(ylabel="task time without motion (%)", xlim=(-0.6, len(groups) - 0.4))
    ax.set_title("waiting for actions (pale: for the first)", loc="left", fontsize=10)
    ax.margins(y=0.15)
    ax.spines[["top", "right"]].set_visible(False)
