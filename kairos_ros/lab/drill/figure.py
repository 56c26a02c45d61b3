"""The picture of one fault: what every robot's body did before, during and after it."""

from pathlib import Path

from kairos_ros.lab.drill.run import FaultResult
from kairos_ros.lab.metrics.figure_style import FAULT, IDLE, OURS, STALLED

_COLOURS = {"executing": OURS, "holding": STALLED, "idle": IDLE}
_LABELS = {
    "executing": "moving",
    "holding": "holding, in a task",
    "idle": "holding, without a task",
}


def draw(path: Path, result: FaultResult) -> None:
    """Timeline of one fault as PNG; time 0 is its beginning."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [robot.robot for robot in result.robots]
    figure, ax = pyplot.subplots(figsize=(10, 1.7 + 0.42 * len(rows)), layout="constrained")
    repaired_s = result.window.repaired_s - result.window.begin_s
    ax.axvspan(0.0, repaired_s, color=FAULT, alpha=0.3, linewidth=0, label="the fault")
    for activity, colour in _COLOURS.items():
        found = [(y, s) for y, r in enumerate(result.robots) for s in r.spans]
        mine = [(y, s) for y, s in found if s.activity == activity]
        ax.barh(
            [y for y, _ in mine],
            [s.end_s - s.start_s for _, s in mine],
            left=[s.start_s for _, s in mine],
            height=0.6,
            color=colour,
            label=_LABELS[activity],
        )
    ax.set_yticks(range(len(rows)), rows)
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlabel="time since the fault began (s)")
    ends = [s.end_s for r in result.robots for s in r.spans]
    ax.set_xlim(-3.0, max([repaired_s, *ends]))
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=4,
        frameon=False,
        fontsize=8,
        handlelength=1,
        title="white: the arm builds its scene",
        title_fontsize=8,
        alignment="right",
    )
    figure.suptitle(_finding(result), x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _finding(result: FaultResult) -> str:
    robots = result.robots
    hold_s = max(robot.hold_s for robot in robots)
    wrong = sum(len(robot.wrong) for robot in robots)
    lost = sum(robot.tasks - robot.finished for robot in robots)
    other = "other " if result.victim else ""
    return (
        f"{result.title}: {lost or 'no'} {other}task{'s' * (lost > 1)} lost, {wrong or 'no'} wrong "
        f"action{'s' * (wrong > 1)}, no arm held longer than {hold_s:.1f} s\n"
    )
