"""The page and the part of it that changes: a view of the fleet in, HTML out. Pure; everything is
escaped."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jinja2

from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.wire_check import TEXT_BYTES, printable
from kairos_ros.telemetry.events import Health
from kairos_ros.telemetry.fleet_view import FleetView, RobotView

HERE = Path(__file__).parent
SILENT_AFTER_S = 3.0
"""Who is unheard for this long is shown as lost, its health as stale: all nodes speak each second.
Older pictures are not shown."""
SEVERITY = ("error", "stale", "warn", "ok")

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def page() -> str:
    """The page before it knows anything; it asks for the fleet by itself, twice a second."""
    return TEMPLATES.get_template("page.html.jinja").render(
        css=(HERE / "page.css").read_text(), js=(HERE / "page.js").read_text()
    )


def fleet(view: FleetView, refused: Mapping[str, int], now_s: float) -> str:
    """What changes. refused: messages refused by the dashboard. now_s: `time.monotonic`."""
    robots = [view.robots[name] for name in sorted(view.robots, key=_natural)]
    statuses = [robot.status for robot in robots if robot.status is not None]
    states = [_state(robot, now_s) for robot in robots]
    serving = _serving(view, now_s)
    return TEMPLATES.get_template("fleet.html.jinja").render(
        view=view,
        robots=[(r, _last_event(r), s) for r, s in zip(robots, states, strict=True)],
        running=states.count("running"),
        waiting=[r.name for r, s in zip(robots, states, strict=True) if s == "waiting for human"],
        serving=serving,
        served=serving in ("active", "inactive"),
        health=_worst_first(view, now_s),
        done=sum(status.tasks_done for status in statuses),
        succeeded=sum(status.tasks_succeeded for status in statuses),
        faults={name: count for name, count in sorted(view.counters.items()) if count},
        refused=dict(sorted(refused.items())),
        now_s=now_s,
    )


def _state(robot: RobotView, now_s: float) -> str:
    """In one word."""
    status = robot.status
    if status is None or status.state is RobotState.LEAVING:
        return "lost"
    if now_s - status.at_s > SILENT_AFTER_S:
        return "lost"
    if robot.mode and robot.mode not in ("running", "holding"):
        return robot.mode.replace("_", " ")
    return status.state.text


def _last_event(robot: RobotView) -> str:
    """What its state machine did last, and why; empty where it did nothing."""
    if (event := robot.transition) is None:
        return ""
    said, component = event.reason or event.trigger, event.component
    named = not component or said.startswith((component, f"the {component} "))
    return printable(said if named else f"{component}: {said}", TEXT_BYTES)


def _serving(view: FleetView, now_s: float) -> str:
    if not view.server:
        return "not heard yet"
    if now_s - view.server_heard_s > SILENT_AFTER_S:
        return "lost"
    return "active" if view.active else "inactive"


def _worst_first(view: FleetView, now_s: float) -> list[Health]:
    health = [_by_now(one, now_s) for one in view.health.values()]
    return sorted(health, key=lambda h: (SEVERITY.index(h.level), h.name))


def _by_now(health: Health, now_s: float) -> Health:
    """Of a node that died nobody else tells."""
    silent_s = now_s - health.at_s
    if silent_s <= SILENT_AFTER_S:
        return health
    message = f"silent for {silent_s:.0f} s; before: {health.level}, {health.message}"
    return replace(health, level="stale", message=message)


def _natural(name: str) -> tuple[str, int]:
    """arm_2 before arm_10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
