"""Predicted chunks as paths of the tool: executed, to come, trimmed away, and how sure of it."""

import math

import numpy as np

from kairos_ros.viz import colours
from kairos_ros.viz.chunk_paths import ChunkPath
from kairos_ros.viz.fleet_layer import builder, scale
from kairos_ros.viz.scene import RobotDrawing, Scene
from kairos_ros.viz.shape import Colour, Shape, point

WIDTH_M = 0.02
"""Of a path to come, for an arm that reaches a metre."""
UNSURE = 0.15
"""Share of the full colour that actions at the limit of confidence still have."""
DASH_M = 0.012


def chunks(scene: Scene) -> list[Shape]:
    """The running and the next chunk of every robot."""
    return [shape for robot in scene.robots.values() for shape in _robot(robot)]


def _robot(robot: RobotDrawing) -> list[Shape]:
    shapes: list[Shape | None] = []
    running, following = robot.chunks.running, robot.chunks.next
    if running is not None:
        for tool, points in enumerate(running.points):
            shapes += _running(robot, tool, points, running)
    if following is not None:
        for tool, points in enumerate(following.points):
            ahead = points[: following.horizon + 1]
            width = 0.006 * scale(robot)
            shapes.append(builder("chunk: next", robot).strip(tool, ahead, width, colours.NEXT))
    return [shape for shape in shapes if shape is not None]


def _running(
    robot: RobotDrawing, tool: int, points: np.ndarray, chunk: ChunkPath
) -> list[Shape | None]:
    executed, to_come, trimmed, now, cut = (
        builder(f"chunk: {ns}", robot) for ns in ("executed", "to come", "trimmed", "now", "cut")
    )
    end = robot.chunks.end
    horizon = chunk.horizon if end is None else min(chunk.horizon, end)
    done, size = min(robot.chunks.done, float(horizon)), scale(robot)
    shapes: list[Shape | None] = [
        executed.strip(tool, part(points, 0.0, done), 0.010 * size, colours.EXECUTED)
    ]
    ahead = part(points, done, horizon)
    inks = shades(chunk.confidence[:horizon], done)
    shapes.append(to_come.strip(tool, ahead, WIDTH_M * size, colours.TO_COME, inks))
    beyond = part(points, horizon, len(points) - 1)
    shapes.append(
        trimmed.segments(tool, dashes(beyond, DASH_M * size), 0.006 * size, colours.TRIMMED)
    )
    here = part(points, done, done)[0]
    ink = colours.SURPRISED if robot.surprise else colours.INK
    shapes.append(now.ball(tool, point(here), 0.035 * size, ink))
    if done < horizon:
        cut_at = points[horizon]
        shapes.append(cut.ball(2 * tool, point(cut_at), 0.035 * size, colours.TO_COME))
        text = f"{horizon} of {len(points) - 1}"
        above = (cut_at[0], cut_at[1], cut_at[2] + 0.10 * size)
        shapes.append(cut.label(2 * tool + 1, point(above), 0.05 * size, text, colours.TO_COME))
    return shapes


def part(points: np.ndarray, start: float, end: float) -> np.ndarray:
    """The path from action `start` to action `end`, fractions included, float64 [n, 3]."""
    inner = points[math.floor(start) + 1 : math.ceil(end)]
    ends = [_at(points, start), *inner]
    return np.array(ends if end == start else [*ends, _at(points, end)])


def shades(confidence: np.ndarray, done: float) -> list[Colour]:
    """Of the points of the path to come: the surer an action, the fuller its colour."""
    actions = range(math.floor(done), len(confidence))
    inks = [
        colours.mixed(
            colours.TRIMMED, colours.TO_COME, UNSURE + (1 - UNSURE) * float(confidence[action])
        )
        for action in actions
    ]
    return [*inks, *inks[-1:]]


def dashes(points: np.ndarray, dash_m: float) -> list[np.ndarray]:
    """Ends of dashes and gaps of `dash_m` along a path."""
    if len(points) < 2:
        return []
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    along = np.concatenate([[0.0], np.cumsum(steps)])
    count = min(2 * int(along[-1] / (2 * dash_m)), 400)
    where = np.arange(count) * dash_m
    return list(np.stack([np.interp(where, along, points[:, i]) for i in range(3)], axis=1))


def _at(points: np.ndarray, action: float) -> np.ndarray:
    low = min(math.floor(action), len(points) - 1)
    high = min(low + 1, len(points) - 1)
    between: np.ndarray = points[low] + (action - low) * (points[high] - points[low])
    return between
