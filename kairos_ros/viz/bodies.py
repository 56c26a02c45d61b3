"""What a robot looks like, and where its tool goes: Meta-World's arm, and arms with a URDF."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.kinematics import Chain
from kairos_ros.robot.metaworld_scenes import ACTION_DIM, GRIPPER, STATE_DIM
from kairos_ros.robot.urdf import read_urdf
from kairos_ros.viz import colours
from kairos_ros.viz.shape import Pen, Point, Shape, point

Box = tuple[Point, Point]
"""Lowest and highest corner, in m in the robot's base frame."""


class Body(Protocol):
    """How one robot is drawn. Positions are in m, in the robot's base frame."""

    zone: Box | None
    """Where its tool may be; None: not known."""
    centre: Point
    """Of its cell, on the ground."""

    def tool(self, state: np.ndarray) -> np.ndarray | None:
        """float64 [3], from the state that the policy reads; None where that cannot be."""

    def path(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
        """float64 [N + 1, 3]: the tool at `state`, then after each of N actions, [N, D]."""

    def hand(self, names: Sequence[str], values: np.ndarray) -> Point | None:
        """Where the newest joint states (names, values) put the tool; None: they do not say."""

    def draw(self, pen: Pen, names: Sequence[str], values: np.ndarray) -> list[Shape]:
        """The arm, by the newest joint states."""


METAWORLD_ZONE: Box = ((-0.5, 0.4, -0.15), (0.5, 1.0, 0.5))
"""The action guard's box in config/robot.yaml."""
METRES_PER_ACTION = 0.01
SHOULDER = np.array([0.0, -0.05, 0.42])
UPPER_ARM_M, FOREARM_M = 0.62, 0.62
_OBJECTS = (slice(4, 7), slice(11, 14))
_GOAL = slice(36, 39)
_OPENING = 3


@dataclass(frozen=True, slots=True)
class MetaWorldBody:
    """Meta-World's Sawyer, whose state tells only the hand: the rest of the arm is suggested by two
    bones from a column to the hand. Table, objects and goal are where the state says."""

    zone: Box | None = METAWORLD_ZONE
    centre: Point = (0.0, 0.5, 0.0)

    @staticmethod
    def fits(state_dim: int, action_dim: int) -> bool:
        return (state_dim, action_dim) == (STATE_DIM, ACTION_DIM)

    def tool(self, state: np.ndarray) -> np.ndarray | None:
        return np.asarray(state[:3], np.float64) if len(state) == STATE_DIM else None

    def path(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
        hand = self.tool(state)
        if hand is None or actions.ndim != 2 or actions.shape[1] != ACTION_DIM:
            return None
        steps = METRES_PER_ACTION * np.clip(actions[:, :GRIPPER].astype(np.float64), -1, 1)
        way = np.vstack([hand, hand + np.cumsum(steps, axis=0)])
        return np.clip(way, self.zone[0], self.zone[1]) if self.zone else way

    def hand(self, names: Sequence[str], values: np.ndarray) -> Point | None:
        where = self.tool(values)
        return None if where is None else point(where)

    def draw(self, pen: Pen, names: Sequence[str], values: np.ndarray) -> list[Shape]:
        hand = self.tool(values)
        if hand is None:
            return []
        wrist = hand + np.array([0.0, 0.0, 0.10])
        elbow = two_bones(SHOULDER, wrist, UPPER_ARM_M, FOREARM_M)
        opening = 0.02 + 0.06 * float(np.clip(values[_OPENING], 0, 1))
        shapes = [
            pen.rod(0, (0, -0.05, 0), point(SHOULDER), 0.16, colours.JOINT),
            pen.rod(1, point(SHOULDER), point(elbow), 0.085, colours.METAL),
            pen.rod(2, point(elbow), point(wrist), 0.07, colours.METAL),
            pen.rod(3, point(wrist), point(hand), 0.05, colours.JOINT),
            pen.ball(4, point(SHOULDER), 0.15, colours.JOINT),
            pen.ball(5, point(elbow), 0.105, colours.JOINT),
            pen.ball(6, point(wrist), 0.085, colours.JOINT),
            *(
                pen.box(
                    7 + side,
                    point(hand + np.array([sign * opening / 2, 0.0, -0.02])),
                    (0.015, 0.03, 0.07),
                    colours.METAL,
                )
                for side, sign in enumerate((-1, 1))
            ),
            pen.box(9, (0.0, 0.7, -0.03), (1.1, 0.72, 0.04), colours.TABLE),
        ]
        if np.any(values[_GOAL]):
            shapes.append(pen.ball(10, point(values[_GOAL]), 0.06, colours.GOAL))
        for number, where in enumerate(_OBJECTS):
            if np.any(values[where]):
                shapes.append(
                    pen.box(11 + number, point(values[where]), (0.05, 0.05, 0.05), colours.OBJECT)
                )
        return [shape for shape in shapes if shape is not None]


@dataclass(frozen=True, slots=True)
class UrdfBody:
    """An arm whose actions are joint positions. Its links are drawn as rods between the frames of
    the URDF, which needs no meshes (rviz's RobotModel display shows those)."""

    chain: Chain
    entries: tuple[int, ...]
    """Of the policy's state and action: where each joint of the chain is."""
    to_rad: float = 1.0
    """Of the policy's unit."""
    own_units: bool = False
    """Joint states are in the policy's unit, too, and not in rad."""
    zone: Box | None = None
    centre: Point = (0.0, 0.0, 0.0)

    @classmethod
    def from_urdf(
        cls,
        text: str,
        tip: str,
        joints: Sequence[str],
        *,
        degrees: bool = False,
        own_units: bool = False,
        zone: Box | None = None,
    ) -> "UrdfBody":
        """joints: names of the first entries of the policy's state and action, in their order.

        Raises ConfigError where the URDF has no such tip, or a joint on the way to it is missing in
        `joints`.
        """
        urdf = read_urdf(text)
        children = {joint.child for joint in urdf.joints.values()}
        roots = [link for link in urdf.links if link not in children]
        if len(roots) != 1:
            raise ConfigError(
                f"the robot description has {len(roots)} root links, {', '.join(roots)}"
            )
        chain = Chain.from_urdf(text, roots[0], tip)
        order = [joint.removesuffix(".pos") for joint in joints] or list(chain.joints)
        if missing := [joint for joint in chain.joints if joint not in order]:
            raise ConfigError(
                f"joint {missing[0]!r} leads to {tip!r} but is none of {', '.join(order)}"
            )
        entries = tuple(order.index(joint) for joint in chain.joints)
        return cls(chain, entries, math.pi / 180 if degrees else 1.0, own_units, zone)

    def tool(self, state: np.ndarray) -> np.ndarray | None:
        q = self._joints(state)
        return None if q is None else self.chain.tip(q)[:3, 3]

    def path(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
        start = self.tool(state)
        targets = [self._joints(action) for action in actions]
        if start is None or any(target is None for target in targets):
            return None
        return np.vstack([start, *(self.chain.tip(target)[:3, 3] for target in targets)])

    def hand(self, names: Sequence[str], values: np.ndarray) -> Point | None:
        q = self._measured(names, values)
        return None if q is None else point(self.chain.tip(q)[:3, 3])

    def draw(self, pen: Pen, names: Sequence[str], values: np.ndarray) -> list[Shape]:
        q = self._measured(names, values)
        if q is None:
            return []
        frames = self.chain.links(q)
        points = [frame[:3, 3] for frame in frames.values()]
        reach = sum(float(np.linalg.norm(b - a)) for a, b in itertools.pairwise(points))
        thick = max(0.015, 0.06 * reach)
        shapes: list[Shape | None] = []
        for number, (a, b) in enumerate(itertools.pairwise(points)):
            width = thick * (1 - 0.5 * number / len(points))
            shapes.append(pen.rod(number, point(a), point(b), width, colours.METAL))
        shapes.append(pen.balls(60, [point(p) for p in points[:-1]], 1.25 * thick, colours.JOINT))
        shapes.append(pen.ball(61, point(points[-1]), 0.9 * thick, colours.OBJECT))
        return [shape for shape in shapes if shape is not None]

    def _measured(self, names: Sequence[str], values: np.ndarray) -> np.ndarray | None:
        """In rad, float64 [n]."""
        now = {name.removesuffix(".pos"): value for name, value in zip(names, values, strict=True)}
        if not set(self.chain.joints) <= set(now):
            return None
        factor = self.to_rad if self.own_units else 1.0
        return factor * np.array([now[joint] for joint in self.chain.joints], np.float64)

    def _joints(self, values: np.ndarray) -> np.ndarray | None:
        if len(values) <= max(self.entries, default=-1):
            return None
        return self.to_rad * np.asarray(values, np.float64)[list(self.entries)]


def two_bones(start: np.ndarray, end: np.ndarray, upper: float, lower: float) -> np.ndarray:
    """The elbow, float64 [3], above the line from `start` to `end`; on it where they are too far
    apart for two bones of these lengths (m)."""
    way = end - start
    distance = float(np.linalg.norm(way))
    if distance < 1e-6:
        return start + np.array([0.0, 0.0, upper])
    along = (upper**2 - lower**2 + distance**2) / (2 * distance)
    height = math.sqrt(max(0.0, upper**2 - along**2))
    direction = way / distance
    up = np.array([0.0, 0.0, 1.0]) - direction[2] * direction
    length = float(np.linalg.norm(up))
    up = up / length if length > 1e-6 else np.array([0.0, 1.0, 0.0])
    return start + min(along, distance) * direction + height * up
