"""Where each arm may be, what its safety service says, and what the robot did about it."""

from itertools import combinations, product

from kairos_ros.viz import colours
from kairos_ros.viz.bodies import Box
from kairos_ros.viz.fleet_layer import builder, centre, scale, state_colour
from kairos_ros.viz.scene import EVENT_SHOWN_S, VERDICT_OLD_S, LastVerdict, RobotDrawing, Scene
from kairos_ros.viz.shape import Colour, Point, Shape

WORDS = 60
"""Of a reason: longer ones are cut."""


def safety(scene: Scene) -> list[Shape]:
    """Zones, verdicts and the newest transition of every robot."""
    return [shape for robot in scene.robots.values() for shape in _robot(robot)]


def _robot(robot: RobotDrawing) -> list[Shape]:
    zones, verdicts, events = (builder(ns, robot) for ns in ("zone", "verdict", "reaction"))
    zone = robot.body.zone if robot.body else None
    x, y, z = centre(robot)
    size = scale(robot)
    top = zone[1][2] if zone else z + 0.6 * size
    colour = verdict_colour(robot.judged)
    shapes: list[Shape | None] = []
    if zone is not None:
        shapes.append(zones.segments(0, edges(zone), 0.006 * size, colour))
        if robot.judged is not None:
            low, high = zone
            middle = (low[0] + high[0]) / 2, (low[1] + high[1]) / 2, (low[2] + high[2]) / 2
            sides = high[0] - low[0], high[1] - low[1], high[2] - low[2]
            unsafe = not robot.judged.safe and robot.judged.ago_s < VERDICT_OLD_S
            fill = colours.faded(colour, 0.22 if unsafe else 0.05)
            shapes.append(zones.box(1, middle, sides, fill))
    if robot.judged is not None:
        above = (x, y, top + 0.08 * size)
        text = verdict_text(robot.judged)
        shapes.append(verdicts.label(0, above, 0.085 * size, text, colours.faded(colour, 1.0)))
    if (moved := robot.transition) is not None and moved.told and moved.ago_s < EVENT_SHOWN_S:
        reason = moved.reason
        reason = reason if len(reason) <= WORDS else reason[: WORDS - 1] + "…"
        above = (x, y, top + 0.20 * size)
        shapes.append(events.label(0, above, 0.075 * size, reason, state_colour(robot)))
    return [shape for shape in shapes if shape is not None]


def verdict_colour(judged: LastVerdict | None) -> Colour:
    if judged is None:
        return colours.faded(colours.UNJUDGED, 0.35)
    if judged.ago_s >= VERDICT_OLD_S:
        return colours.UNJUDGED
    return colours.SAFE if judged.safe else colours.UNSAFE


def verdict_text(judged: LastVerdict) -> str:
    if judged.ago_s >= VERDICT_OLD_S:
        return f"judge silent for {judged.ago_s:.0f} s"
    said = "safe" if judged.safe else "UNSAFE"
    sure = "" if judged.probability != judged.probability else f" {100 * judged.probability:.0f} %"
    return f"{said}{sure} · {1e3 * judged.latency_s:.0f} ms"


def edges(box: Box) -> list[Point]:
    """The twelve edges of a box, as pairs of points."""
    (x, y, z), (to_x, to_y, to_z) = box
    corners = list(product((x, to_x), (y, to_y), (z, to_z)))
    pairs = [
        (a, b)
        for a, b in combinations(corners, 2)
        if sum(p != q for p, q in zip(a, b, strict=True)) == 1
    ]
    return [corner for pair in pairs for corner in pair]
