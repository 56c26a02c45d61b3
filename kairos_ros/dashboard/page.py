"""The page and the part of it that changes: `Board` in, HTML out. Pure; everything is escaped."""

from dataclasses import replace
from pathlib import Path

import jinja2

from kairos_ros.dashboard.board import SILENT_AFTER_S, Board, Health

HERE = Path(__file__).parent
SEVERITY = ("error", "stale", "warn", "ok")

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def page() -> str:
    """The page before it knows anything; it asks for the fleet by itself, twice a second."""
    return _TEMPLATES.get_template("page.html.jinja").render(
        css=(HERE / "page.css").read_text(), js=(HERE / "page.js").read_text()
    )


def fleet(board: Board, now_s: float) -> str:
    """What changes. now_s: `time.monotonic`."""
    robots = [board.robots[name] for name in sorted(board.robots, key=_natural)]
    states = [robot.state(now_s) for robot in robots]
    serving = _serving(board, now_s)
    return _TEMPLATES.get_template("fleet.html.jinja").render(
        board=board,
        robots=list(zip(robots, states, strict=True)),
        running=states.count("running"),
        waiting=[r.name for r, s in zip(robots, states, strict=True) if s == "waiting for human"],
        serving=serving,
        served=serving in ("active", "inactive"),
        health=_worst_first(board, now_s),
        done=sum(robot.tasks_done for robot in robots),
        succeeded=sum(robot.tasks_succeeded for robot in robots),
        faults={name: count for name, count in sorted(board.counters.items()) if count},
        now_s=now_s,
    )


def _serving(board: Board, now_s: float) -> str:
    if not board.server:
        return "not heard yet"
    if now_s - board.server_heard_at_s > SILENT_AFTER_S:
        return "lost"
    return "active" if board.active else "inactive"


def _worst_first(board: Board, now_s: float) -> list[Health]:
    health = [_by_now(one, now_s) for one in board.health.values()]
    return sorted(health, key=lambda h: (SEVERITY.index(h.level), h.name))


def _by_now(health: Health, now_s: float) -> Health:
    """Of a node that died nobody else tells."""
    silent_s = now_s - health.heard_at_s
    if silent_s <= SILENT_AFTER_S:
        return health
    message = f"silent for {silent_s:.0f} s; before: {health.level}, {health.message}"
    return replace(health, level="stale", message=message)


def _natural(name: str) -> tuple[str, int]:
    """arm_2 before arm_10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
