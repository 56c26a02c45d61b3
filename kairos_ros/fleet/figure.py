"""A fleet as a picture: robots, the tasks they do, what those ask of which model, the servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kairos_ros.core.pipeline import PERIODIC, Component
from kairos_ros.fleet.demand import ComponentDemand, demands
from kairos_ros.fleet.fleet_file import FleetFile, TaskClass
from kairos_ros.fleet.tree import plans_told, robots_told

GOAL, OBLIGATION = "#0b7a75", "#9a9a9a"
"""Components that set the pace, and those that watch (Rosa §2)."""
INK, PALE, EDGE = "#222222", "#f4f4f4", "#c8c8c8"
ROW, BOX = 1.0, 0.74
"""Heights, in rows."""
COLUMNS: Mapping[str, tuple[float, float]] = {
    "robots": (0.0, 2.3),
    "task classes": (2.9, 2.5),
    "components: requests per second": (6.0, 3.6),
    "models": (10.6, 3.2),
    "servers": (14.4, 1.6),
}
"""Left edge and width."""


@dataclass(frozen=True, slots=True)
class Box:
    """One rectangle with two lines of text; `y` is its middle, downwards."""

    column: str
    y: float
    head: str
    detail: str
    colour: str = EDGE

    @property
    def right(self) -> tuple[float, float]:
        left, width = COLUMNS[self.column]
        return left + width, self.y

    @property
    def left(self) -> tuple[float, float]:
        return COLUMNS[self.column][0], self.y


def draw_fleet(fleet: FleetFile, path: Path, kind: Literal["png", "svg"]) -> None:
    """Writes the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    asked = demands(fleet)
    rows = max(len(asked), len(fleet.robot_fleet), 3)
    figure, axes = pyplot.subplots(figsize=(15, 1.9 + 0.62 * rows), layout="constrained")
    figure.suptitle(finding(fleet, asked), fontsize=14, x=0.01, ha="left", color=INK)
    end = _draw_tasks(axes, fleet, asked)
    for name, (left, width) in COLUMNS.items():
        axes.text(left + width / 2, -0.75, name, ha="center", fontsize=10, color="#555555")
    for colour, label in ((GOAL, "sets the pace (at most)"), (OBLIGATION, "watches")):
        axes.plot([], [], color=colour, linewidth=3, label=label)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=2, frameon=False, fontsize=10)
    right, width = COLUMNS["servers"]
    axes.set(xlim=(-0.1, right + width + 0.1), ylim=(end - 0.4, -1.1))
    axes.axis("off")
    figure.savefig(path, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)


def finding(fleet: FleetFile, asked: Sequence[ComponentDemand]) -> str:
    """How much the fleet asks for, in one line."""
    hz = dict.fromkeys(Component, 0.0)
    for demand in asked:
        hz[demand.component] += demand.hz
    judgements = sum(hz[component] for component in PERIODIC)
    parts = [f"{hz[Component.SYSTEM1]:.3g} action chunks"]
    parts += [f"{hz[Component.SYSTEM2]:.3g} plans"] if hz[Component.SYSTEM2] else []
    parts += [f"{judgements:.3g} judgements"] if judgements else []
    told = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    servers = fleet.server_cluster.num_servers
    return (
        f"{len(fleet.robots)} robots ask {servers} server{'s' * (servers > 1)} for at most {told} "
        "per second"
    )


def _draw_tasks(axes: Any, fleet: FleetFile, asked: Sequence[ComponentDemand]) -> float:
    """Draws everything; returns how far down it reaches, in rows."""
    models = {
        one: [d for d in asked if d.model == one] for one in dict.fromkeys(d.model for d in asked)
    }
    rows = max(len(asked), len(fleet.robot_fleet), len(models))
    spread = rows / len(models)
    model_boxes = {
        model: Box("models", (i + 0.5) * spread - 0.5, *_model(fleet, model, users))
        for i, (model, users) in enumerate(models.items())
    }
    cluster = fleet.server_cluster
    servers = Box("servers", (rows - 1) / 2, f"{cluster.num_servers} x", cluster.gpu_type)
    top = 0.0
    for name, task in fleet.tasks.items():
        groups = [group for group in fleet.robot_fleet if group.task == name]
        mine = [demand for demand in asked if demand.task == name]
        height = max(len(groups), len(mine))
        box = Box("task classes", top + (height - 1) / 2, name, _pace(task))
        for i, group in enumerate(groups):
            y = top + (i + 0.5) * height / len(groups) - 0.5
            body = f"{group.adapter}, {group.control_rate_hz:g} Hz"
            robots = Box("robots", y, f"{len(group.robots)} robots", f"{_few(group)}{body}")
            _join(axes, robots.right, box.left, EDGE, 1.5)
            _draw(axes, robots)
        for i, demand in enumerate(mine):
            one = task.components.used[demand.component]
            colour = OBLIGATION if demand.component in PERIODIC else GOAL
            head = f"{demand.component}   {demand.hz:.3g}/s"
            detail = f"within {one.slo_ms:g} ms, else {one.fallback}"
            component = Box(
                "components: requests per second",
                top + i * height / len(mine),
                head,
                detail,
                colour,
            )
            _join(axes, box.right, component.left, EDGE, 1.5)
            thick = min(7.0, 1.0 + demand.hz**0.5 / 2)
            _join(axes, component.right, model_boxes[demand.model].left, colour, thick)
            _draw(axes, component)
        _draw(axes, box)
        top += height * ROW
    for box in model_boxes.values():
        _join(axes, box.right, servers.left, EDGE, 1.5)
        _draw(axes, box)
    _draw(axes, servers)
    return rows


def _few(group: Any) -> str:
    told = robots_told(group)
    return f"{told}\n" if len(told) <= 34 else ""


def _pace(task: TaskClass) -> str:
    return "\n".join(
        [f"acts {task.pipeline.action_period_ms:g} ms per prediction", *plans_told(task)]
    )


def _model(fleet: FleetFile, model: str, users: Sequence[ComponentDemand]) -> tuple[str, str]:
    hz = sum(demand.hz for demand in users)
    located = fleet.located(model)
    where = f"at {located}\n" if located != model else ""
    return model, f"{where}{hz:.3g} requests/s of {len(users)} components"


def _draw(axes: Any, box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, width = COLUMNS[box.column]
    axes.add_patch(
        FancyBboxPatch(
            (left, box.y - BOX / 2),
            width,
            BOX,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=PALE,
            edgecolor=box.colour,
            linewidth=1.6,
            zorder=3,
        )
    )
    middle = left + width / 2
    fits = round(10.5 * width)
    lines = 1 + box.detail.count("\n")
    for text, y, style in (
        (_fit(box.head, fits), box.y - 0.07 * lines, {"weight": "bold", "size": 9.5}),
        (_fit(box.detail, 3 * fits), box.y + 0.24 - 0.04 * lines, {"color": "#555555", "size": 8}),
    ):
        axes.text(middle, y, text, ha="center", va="center", zorder=4, **style)


def _fit(text: str, length: int) -> str:
    """Shortened where it is too long, and without matplotlib's formulas between `$`."""
    short = text if len(text) <= length else f"{text[: length - 3]}..."
    return short.replace("$", r"\$")


def _join(
    axes: Any, start: tuple[float, float], end: tuple[float, float], colour: str, width: float
) -> None:
    """A curve that leaves and arrives level."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    bend = (start[0] + end[0]) / 2
    points = [start, (bend, start[1]), (bend, end[1]), end]
    codes = [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]
    axes.add_patch(
        PathPatch(Curve(points, codes), fill=False, edgecolor=colour, linewidth=width, alpha=0.8)
    )
