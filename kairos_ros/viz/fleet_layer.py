"""Each robot's place: a pad, what the robot is at, how long it waits."""

from kairos_ros.viz import colours
from kairos_ros.viz.scene import RobotDrawing, Scene
from kairos_ros.viz.shape import Colour, Point, Shape, ShapeBuilder

PER_ROBOT = 100
"""Ids that a robot has in a namespace."""
PAD_M = (1.36, 1.36, 0.02)
_UNDER = -0.08
"""Height of the pads: tables and bases stand at 0."""
_COLOURS: dict[str, Colour] = {
    "idle": colours.IDLE,
    "running": colours.RUNNING,
    "holding": colours.HOLDING,
    "leaving": colours.IDLE,
    "returning_to_safe_state": colours.RETURNING,
    "retrying": colours.RETURNING,
    "waiting_for_human": colours.NEEDS_HUMAN,
}


def builder(ns: str, robot: RobotDrawing) -> ShapeBuilder:
    """For the shapes of one robot in its own frame."""
    return ShapeBuilder(ns, robot.frame, robot.slot * PER_ROBOT)


def centre(robot: RobotDrawing) -> Point:
    """Of the robot's cell, on the ground."""
    return robot.body.centre if robot.body else (0.0, 0.0, 0.0)


def scale(robot: RobotDrawing) -> float:
    """Of what is drawn beside the robot, see `Body.scale`."""
    return robot.body.scale if robot.body else 1.0


def state_colour(robot: RobotDrawing) -> Colour:
    return _COLOURS.get(robot.mode, colours.IDLE)


def fleet(scene: Scene) -> list[Shape]:
    """Pads, captions and wait ratios of all robots."""
    return [shape for robot in scene.robots.values() for shape in _robot(robot)]


def _robot(robot: RobotDrawing) -> list[Shape]:
    x, y, z = centre(robot)
    size, colour = scale(robot), state_colour(robot)
    width, depth, height = (size * side for side in PAD_M)
    front, under = y + depth / 2, z + _UNDER * size
    pads, captions, waits = (builder(ns, robot) for ns in ("pad", "caption", "wait ratio"))
    shapes = [
        pads.box(0, (x, y, under), (width, depth, height), colours.FLOOR),
        pads.box(1, (x, front + 0.02 * size, under), (width, 0.04 * size, 0.04 * size), colour),
    ]
    lines = (
        (title(robot), 0.11, 0.20, colour),
        (robot.instruction, 0.085, 0.33, colours.INK),
        (details(robot), 0.07, 0.44, colours.FAINT),
        (score(robot), 0.07, 0.54, colours.FAINT),
    )
    for number, (text, letter, below, ink) in enumerate(lines):
        if text:
            at = (x, front + 0.03 * size, z - below * size)
            shapes.append(captions.label(number, at, letter * size, text, ink))
    if robot.wait_ratio is not None and robot.instruction:
        at = (x, front - 0.06 * size, z - 0.05 * size)
        shapes += _bar(waits, at, width - 0.1 * size, size, robot.wait_ratio)
    return shapes


def title(robot: RobotDrawing) -> str:
    """Name and state."""
    return f"{robot.name}: {robot.mode.replace('_', ' ')}"


def details(robot: RobotDrawing) -> str:
    """Round and waits of the running task, as far as they are known."""
    parts = []
    if robot.instruction:
        parts.append(f"round {robot.round}")
        if robot.policy:
            parts.append(f"policy {robot.policy}")
        if robot.wait_ratio is not None:
            parts.append(f"waits {100 * robot.wait_ratio:.0f} %")
        if robot.stalled_s >= 0.1:
            parts.append(f"held {robot.stalled_s:.1f} s")
        if robot.asks:
            parts.append(robot.asks)
        if robot.surprise:
            parts.append(f"surprised: {robot.surprise}")
    return " · ".join(parts)


def score(robot: RobotDrawing) -> str:
    """Of the tasks so far."""
    return f"{robot.tasks_succeeded} of {robot.tasks_done} done" if robot.tasks_done else ""


def _bar(builder: ShapeBuilder, at: Point, length: float, size: float, share: float) -> list[Shape]:
    """A bar on the ground that fills from the viewer's left (+x)."""
    x, y, z = at
    filled = max(1e-3, min(1.0, share)) * length
    over = (x + (length - filled) / 2, y, z + 0.005 * size)
    return [
        builder.box(0, at, (length, 0.035 * size, 0.02 * size), colours.EMPTY),
        builder.box(1, over, (round(filled, 3), 0.037 * size, 0.025 * size), colours.WAITING),
    ]


def arms(scene: Scene) -> list[Shape]:
    """Every robot whose looks and joints are known."""
    return [
        shape
        for robot in scene.robots.values()
        if robot.body is not None and len(robot.joints)
        for shape in robot.body.draw(builder("arm", robot), robot.joint_names, robot.joints)
    ]
