"""What a robot looks like, and where its tool goes: Meta-World's arm, and arms with a URDF."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.adapters.contract.contract import ContractJoint, joint_names
from kairos_ros.robot.adapters.contract.joint_units import JointUnits
from kairos_ros.robot.adapters.sim.metaworld_scenes import ACTION_DIM, GRIPPER, STATE_DIM
from kairos_ros.robot.description.kinematics import Chain
from kairos_ros.robot.description.urdf import read_urdf
from kairos_ros.viz import colours
from kairos_ros.viz.shape import Point, Shape, ShapeBuilder, point

Box = tuple[Point, Point]
"""Lowest and highest corner, in m in the robot's base frame."""


class Body(Protocol):
    """How one robot is drawn. Positions are in m, in the robot's base frame; T: its tools."""

    @property
    def zone(self) -> Box | None:
        """Where its tools may be; None: not known."""

    @property
    def centre(self) -> Point:
        """Of its cell, on the ground."""

    @property
    def scale(self) -> float:
        """Of what is drawn beside it: 1 for an arm that reaches a metre."""

    def paths(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
        """float64 [T, N + 1, 3]: the tools at the policy's `state`, then after each of N actions,
        [N, D]. None where they do not fit this body."""

    def tools(self, names: Sequence[str], values: np.ndarray) -> list[Point]:
        """Where the newest joint states (names, values) put them; none: they do not say."""

    def draw(self, builder: ShapeBuilder, names: Sequence[str], values: np.ndarray) -> list[Shape]:
        """The arm, by the newest joint states."""


METAWORLD_ZONE: Box = ((-0.5, 0.4, -0.15), (0.5, 1.0, 0.5))
"""The action guard's box in config/robot.yaml."""
METRES_PER_ACTION = 0.01
SHOULDER = np.array([0.0, -0.05, 0.42])
UPPER_ARM_M, FOREARM_M = 0.62, 0.62
_OBJECTS = (slice(4, 7), slice(11, 14))
_GOAL = slice(36, 39)
_OPENING = 3
IDS_PER_ARM = 40
"""Of one robot, for the shapes of each of its arms."""


@dataclass(frozen=True, slots=True)
class MetaWorldBody:
    """Meta-World's Sawyer, whose state tells only the hand: the rest of the arm is suggested by two
    bones from a column to the hand. Table, objects and goal are where the state says."""

    zone: Box | None = METAWORLD_ZONE
    centre: Point = (0.0, 0.5, 0.0)
    scale: float = 1.0

    @staticmethod
    def fits(state_dim: int, action_dim: int) -> bool:
        return (state_dim, action_dim) == (STATE_DIM, ACTION_DIM)

    def paths(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
        if len(state) != STATE_DIM or actions.shape[1:] != (ACTION_DIM,):
            return None
        hand = np.asarray(state[:3], np.float64)
        steps = METRES_PER_ACTION * np.clip(actions[:, :GRIPPER].astype(np.float64), -1, 1)
        way = np.vstack([hand, hand + np.cumsum(steps, axis=0)])
        return (np.clip(way, self.zone[0], self.zone[1]) if self.zone else way)[None]

    def tools(self, names: Sequence[str], values: np.ndarray) -> list[Point]:
        return [point(values)] if len(values) == STATE_DIM else []

    def draw(self, builder: ShapeBuilder, names: Sequence[str], values: np.ndarray) -> list[Shape]:
        if len(values) != STATE_DIM:
            return []
        hand = np.asarray(values[:3], np.float64)
        wrist = hand + np.array([0.0, 0.0, 0.10])
        elbow = two_bones(SHOULDER, wrist, UPPER_ARM_M, FOREARM_M)
        opening = 0.02 + 0.06 * float(np.clip(values[_OPENING], 0, 1))
        shapes = [
            builder.rod(0, (0, -0.05, 0), point(SHOULDER), 0.16, colours.JOINT),
            builder.rod(1, point(SHOULDER), point(elbow), 0.085, colours.METAL),
            builder.rod(2, point(elbow), point(wrist), 0.07, colours.METAL),
            builder.rod(3, point(wrist), point(hand), 0.05, colours.JOINT),
            builder.ball(4, point(SHOULDER), 0.15, colours.JOINT),
            builder.ball(5, point(elbow), 0.105, colours.JOINT),
            builder.ball(6, point(wrist), 0.085, colours.JOINT),
            *(
                builder.box(
                    7 + side,
                    point(hand + np.array([sign * opening / 2, 0.0, -0.02])),
                    (0.015, 0.03, 0.07),
                    colours.METAL,
                )
                for side, sign in enumerate((-1, 1))
            ),
            builder.box(9, (0.0, 0.7, -0.03), (1.1, 0.72, 0.04), colours.TABLE),
        ]
        if np.any(values[_GOAL]):
            shapes.append(builder.ball(10, point(values[_GOAL]), 0.06, colours.GOAL))
        for number, where in enumerate(_OBJECTS):
            if np.any(values[where]):
                shapes.append(
                    builder.box(
                        11 + number, point(values[where]), (0.045, 0.045, 0.045), colours.OBJECT
                    )
                )
        return [shape for shape in shapes if shape is not None]


@dataclass(frozen=True, slots=True)
class UrdfBody:
    """An arm, or several on one base, whose actions are joint positions.

    Its links are drawn as rods between the frames of the URDF, which needs no meshes (rviz's
    RobotModel display shows those).
    """

    chains: tuple[Chain, ...]
    """One per tool, all from the root of the URDF."""
    entries: tuple[tuple[int, ...], ...]
    """Where each chain's joints are in the policy's state and action."""
    joints: tuple[str, ...]
    """As joint states name them, in the order of the policy's state and action."""
    features: tuple[str, ...]
    """Names of the first entries of the policy's state."""
    units: JointUnits
    """Of those entries."""
    zone: Box | None = None
    centre: Point = (0.0, 0.0, 0.0)
    scale: float = 1.0

    @classmethod
    def from_urdf(
        cls,
        text: str,
        tips: Sequence[str],
        joints: Sequence[ContractJoint],
        zone: Box | None = None,
    ) -> "UrdfBody":
        """joints: of the robot's contract, in the order of the policy's state and action.

        Raises ConfigError where the URDF has no such tip, or a joint on the way to it is none of
        `joints`.
        """
        urdf = read_urdf(text)
        chains = tuple(Chain.from_urdf(text, urdf.root, tip) for tip in tips)
        entry = {joint.name: i for i, joint in enumerate(joints)}
        # two arms with a driver each have the same joints, but not the same features
        entry |= {joint.feature.removesuffix(".pos"): i for i, joint in enumerate(joints)}
        for chain, tip in zip(chains, tips, strict=True):
            if missing := [joint for joint in chain.joints if joint not in entry]:
                raise ConfigError(
                    f"joint {missing[0]!r} leads to {tip!r} but is none of the contract's, "
                    f"{', '.join(joint.name for joint in joints)}"
                )
        entries = tuple(tuple(entry[joint] for joint in chain.joints) for chain in chains)
        features = tuple(joint.feature for joint in joints)
        reach = max(_length(chain) for chain in chains)
        scale = min(1.0, max(0.3, reach))
        return cls(
            chains, entries, joint_names(joints), features, JointUnits(joints), zone, scale=scale
        )

    def paths(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
        count = len(self.features)
        if len(state) < count or actions.ndim != 2 or actions.shape[1] != count:
            return None
        stops = [self.units.positions(q) for q in (np.asarray(state[:count]), *actions)]
        return np.array(
            [
                [chain.tip(stop[list(entries)])[:3, 3] for stop in stops]
                for chain, entries in zip(self.chains, self.entries, strict=True)
            ]
        )

    def tools(self, names: Sequence[str], values: np.ndarray) -> list[Point]:
        return [point(list(frames.values())[-1][:3, 3]) for frames in self._links(names, values)]

    def draw(self, builder: ShapeBuilder, names: Sequence[str], values: np.ndarray) -> list[Shape]:
        shapes: list[Shape | None] = []
        links = self._links(names, values)
        for arm, frames in enumerate(links):
            points = [point(frame[:3, 3]) for frame in frames.values()]
            pieces = list(pairwise(points))
            thick = 0.06 * self.scale
            first = arm * IDS_PER_ARM
            for number, (a, b) in enumerate(pieces):
                width = round(thick * (1 - 0.5 * number / len(pieces)), 4)
                shapes.append(builder.rod(first + number, a, b, width, colours.METAL))
            shapes.append(builder.balls(first + 30, points[:-1], 1.25 * thick, colours.JOINT))
            shapes.append(builder.ball(first + 31, points[-1], 0.8 * thick, colours.INK))
        for number, target in enumerate(self._targets(names, values, links)):
            shapes.append(builder.ball(90 + number, target, 0.07 * self.scale, colours.GOAL))
        return [shape for shape in shapes if shape is not None]

    def _links(self, names: Sequence[str], values: np.ndarray) -> list[dict[str, np.ndarray]]:
        """The frames of every chain's links, by name."""
        now = dict(zip(names, values, strict=True))
        if set(self.joints) <= set(now):
            q = np.array([now[joint] for joint in self.joints])
        elif set(self.features) <= set(now):
            q = self.units.positions(np.array([now[feature] for feature in self.features]))
        else:
            return []
        return [
            chain.links(q[list(entries)])
            for chain, entries in zip(self.chains, self.entries, strict=True)
        ]

    @staticmethod
    def _targets(
        names: Sequence[str], values: np.ndarray, links: Sequence[dict[str, np.ndarray]]
    ) -> Iterator[Point]:
        """Entries `PREFIXtarget.x`, `.y` and `.z` of the state, in m in the frame of the link
        `PREFIXbase_link`, or of the root where there is none: what shipped policies reach for."""
        now = dict(zip(names, values, strict=True))
        frames = {name: frame for arm in links for name, frame in arm.items()}
        for name in names:
            prefix, ends, _ = name.partition("target.x")
            where = [now.get(f"{prefix}target.{axis}") for axis in "xyz"]
            if ends and None not in where and np.isfinite(np.array(where, float)).all():
                base = frames.get(f"{prefix}base_link", np.eye(4))
                yield point((base @ np.array([*where, 1.0]))[:3])


def _length(chain: Chain) -> float:
    """In m, along its links."""
    points = [frame[:3, 3] for frame in chain.links(np.zeros(len(chain.joints))).values()]
    return sum(float(np.linalg.norm(b - a)) for a, b in pairwise(points))


def two_bones(start: np.ndarray, end: np.ndarray, upper: float, lower: float) -> np.ndarray:
    """The elbow, float64 [3], above the line from `start` to `end`; on it where they are too far
    apart for two bones of these lengths (m)."""
    way = end - start
    distance = float(np.linalg.norm(way))
    if distance < 1e-6:
        above: np.ndarray = start + np.array([0.0, 0.0, upper])
        return above
    along = (upper**2 - lower**2 + distance**2) / (2 * distance)
    height = math.sqrt(max(0.0, upper**2 - along**2))
    direction = way / distance
    up = np.array([0.0, 0.0, 1.0]) - direction[2] * direction
    length = float(np.linalg.norm(up))
    up = up / length if length > 1e-6 else np.array([0.0, 1.0, 0.0])
    elbow: np.ndarray = start + min(along, distance) * direction + height * up
    return elbow
