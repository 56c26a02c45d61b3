"""The picture of a factory demo: what every robot did when, and what happened to it."""

from collections.abc import Sequence
from pathlib import Path

from kairos_ros.lab.demos.factory.events import EventKind
from kairos_ros.lab.demos.factory.history import NO_TASK, FleetHistory
from kairos_ros.lab.demos.factory.outcome import STOPS, Outcome, Result
from kairos_ros.lab.metrics.figure_style import (
    IDLE,
    INK,
    NEEDS_HUMAN,
    OURS,
    RETRYING,
    RETURNING,
    STALLED,
)
from kairos_ros.lab.metrics.fleet_plot import draw_spans
from kairos_ros.robot.supervision.state_table import Mode

COLOURS = {
    Mode.RUNNING.value: OURS,
    Mode.HOLDING.value: STALLED,
    Mode.RETURNING.value: RETURNING,
    Mode.RETRYING.value: RETRYING,
    Mode.WAITING.value: NEEDS_HUMAN,
    NO_TASK: IDLE,
}
LABELS = {
    Mode.RUNNING.value: "running",
    Mode.HOLDING.value: "holding",
    Mode.RETURNING.value: "returning to safe state",
    Mode.RETRYING.value: "retrying",
    Mode.WAITING.value: "waiting for a human",
    NO_TASK: "between tasks",
}
NAMES = {
    EventKind.INTRUDER: "intruder",
    EventKind.KNOCK: "object knocked away",
    EventKind.SAFETY: "no safety service",
    EventKind.PLANNER: "slow planner",
    EventKind.LINGERER: "intruder who stays",
}


def finding(outcomes: Sequence[Outcome]) -> str:
    """What the run showed, in one line."""
    if not outcomes:
        return "nothing happened to the fleet"
    kept = sum(one.result is Result.PASS for one in outcomes)
    stops = [r.after_s for one in outcomes if one.event.kind in STOPS for r in one.reactions]
    slowest = f"; the slowest stop took {1e3 * max(stops):.0f} ms" if stops else ""
    return f"{kept} of {len(outcomes)} events were answered as the fleet file promises{slowest}"


def plot_factory(
    path: Path,
    robots: Sequence[str],
    history: FleetHistory,
    outcomes: Sequence[Outcome],
    end_s: float,
) -> None:
    """Robots over time, states as colours, events as marks, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ax = pyplot.subplots(figsize=(13, 2.6 + 0.55 * len(robots)), layout="constrained")
    row = {robot: i for i, robot in enumerate(robots)}
    for mode, colour in COLOURS.items():
        spans = [
            (row[s.robot], s.start_s, s.end_s)
            for s in history.spans(robots, end_s)
            if s.mode == mode
        ]
        draw_spans(ax, spans, colour, LABELS[mode])
    for i, one in enumerate(outcomes):
        event, top = one.event, -0.78 - 0.3 * (i % 3)  # neighbours' names do not meet
        rows = [row[robot] for robot in event.robots if robot in row]
        low, high = min(rows, default=0) - 0.42, max(rows, default=0) + 0.42
        ax.fill_between(
            [event.began_s, max(event.undone_s, event.began_s + 0.15)],
            low,
            high,
            facecolor="none",
            edgecolor=INK,
            hatch="////",
            lw=1.2,
            alpha=0.75,
        )
        ax.plot([event.began_s] * 2, [top, low], color=INK, lw=0.8, ls=":")
        ax.annotate(
            f"{NAMES[event.kind]}: {one.result}",
            (event.began_s, top),
            ha="left",
            va="bottom",
            fontsize=9,
            color=INK,
        )
    for released in history.releases:
        ax.plot(
            released.at_s,
            row[released.robot],
            marker="v",
            color="white",
            markeredgecolor=INK,
            markersize=9,
            label="released by a human",
        )
    ax.set(xlim=(0, end_s or 1), ylim=(len(robots) - 0.4, -1.75), xlabel="time since start (s)")
    ax.set_yticks(range(len(robots)), list(robots))
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower left",
        ncols=7,
        frameon=False,
        fontsize=9,
        handlelength=1,
    )
    figure.suptitle(finding(outcomes), fontsize=13, x=0.01, ha="left")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
