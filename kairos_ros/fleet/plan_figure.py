"""A plan as a picture: how full every GPU is, and how fast every class is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.fleet.figure import GOAL, INK, OBLIGATION
from kairos_ros.planning.plan import Plan, ServerPlan

LABELLED = 40
"""More servers have no text of their own."""
LIGHTER = {Component.SYSTEM2: 0.65, Component.MONITOR: 0.6}
"""Opacity: System 1 and safety are drawn solid."""


def draw_plan(plan: Plan, path: Path) -> None:
    """Writes PNG or SVG, by the name of the file."""
    from matplotlib.figure import Figure

    rows = len(plan.servers)
    height = 2.2 + (0.3 * rows if rows <= LABELLED else 0.09 * rows + 3)
    figure = Figure(figsize=(13, min(height, 40)), layout="constrained")
    servers, rates = figure.subplots(1, 2, width_ratios=(2.2, 1))
    robots = sum(one.robots for one in plan.classes)
    figure.suptitle(
        f"{robots} robots on {plan.gpus} x {plan.device}: {plan.actions_hz:.4g} actions/s\n"
        f"limited by {plan.limits}",
        x=0.01, ha="left", fontsize=11, color=INK,
    )  # fmt: skip
    _draw_servers(servers, plan.servers)
    _draw_rates(rates, plan)
    assumed = f"; assumed profiles: {', '.join(plan.assumed)}" if plan.assumed else ""
    figure.supxlabel(f"{plan.execution} execution{assumed}", fontsize=7, color="0.4")
    figure.savefig(path, dpi=120)


def _draw_servers(axes: Any, servers: Sequence[ServerPlan]) -> None:
    seen: set[Component] = set()
    for y, one in enumerate(servers):
        colour = OBLIGATION if one.component in PERIODIC else GOAL
        label = None if one.component in seen else str(one.component)
        seen.add(one.component)
        opacity = LIGHTER.get(one.component, 1.0)
        axes.barh(y, 100 * one.load, color=colour, alpha=opacity, height=0.75, label=label)
        if len(servers) <= LABELLED:
            robots = sum(map(len, one.robots.values()))
            text = (
                f"{robots} robots, batch {one.batch}, p99 {1e3 * one.p99_s:.0f} of "
                f"{1e3 * one.slo_s:g} ms"
            )
            axes.text(101.5, y, text, va="center", fontsize=8, color=INK)
    labelled = len(servers) <= LABELLED
    ticks = range(0, len(servers), 1 if labelled else 10)
    axes.set_yticks(ticks, [servers[i].gpu for i in ticks])
    axes.axvline(100, color="0.7", lw=0.8)
    axes.set(
        xlim=(0, 160 if labelled else 105),
        ylim=(len(servers) - 0.4, -0.6),
        xlabel="requests, % of what keeps SLO and rate",
        xticks=range(0, 101, 20),
    )
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_rates(axes: Any, plan: Plan) -> None:
    names = [f"{one.name}\n{one.robots} robots" for one in plan.classes]
    axes.bar(names, [c.ceiling_hz for c in plan.classes], color="0.88", label="idle models")
    axes.bar(names, [c.actions_hz for c in plan.classes], color=GOAL, width=0.6, label="planned")
    axes.set(ylabel="actions/s of each robot")
    axes.tick_params(axis="x", labelsize=8)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True, slots=True)
class SweepRow:
    """What so many GPUs give."""

    gpus: int
    actions_hz: float | None
    """Of the fleet as it is; None where they are too few."""
    robots: int
    """At most, each with at least a share of its ceiling, in the fleet's mixture of tasks."""

    @property
    def robots_per_gpu(self) -> float:
        return self.robots / self.gpus


def draw_sweep(
    rows: Sequence[SweepRow], share: float, title: str, setting: str, path: Path
) -> None:
    """Robots per GPU, and the fleet's actions, against GPUs; `setting` in small print."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    gpus = [row.gpus for row in rows]
    left.plot(gpus, [row.robots_per_gpu for row in rows], "o-", color=GOAL)
    left.set(
        xlabel="GPUs",
        ylabel="robots per GPU",
        ylim=(0, None),
        title=f"robots that get {100 * share:.0f} % of their most",
    )
    some = [row for row in rows if row.actions_hz is not None]
    right.plot([r.gpus for r in some], [r.actions_hz for r in some], "o-", color=GOAL)
    right.set(xlabel="GPUs", ylabel="actions/s", ylim=(0, None), title="this fleet")
    for axes in (left, right):
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(setting, fontsize=7, color="0.4")
    figure.savefig(path, dpi=120)
