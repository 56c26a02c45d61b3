"""A robot description as plain data: links and joints of a URDF, without looks and masses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np

from kairos_ros.core.errors import ConfigError

MOVING = ("revolute", "continuous", "prismatic")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a joint can do, in rad or m, and per second."""

    lower: float
    upper: float
    velocity: float


@dataclass(frozen=True, slots=True)
class UrdfJoint:
    """What connects the frame of a child link to that of its parent."""

    name: str
    kind: str
    """revolute, continuous, prismatic or fixed."""
    parent: str
    child: str
    origin: np.ndarray
    """float64 [4, 4]: the joint's frame in the parent's."""
    axis: np.ndarray
    """float64 [3], of length 1, in the joint's frame."""
    limits: Limits | None = None
    mimics: str = ""
    """The joint that it follows: its value is `factor` times that joint's plus `offset`."""
    factor: float = 1.0
    offset: float = 0.0

    @property
    def moves(self) -> bool:
        return self.kind in MOVING

    def transform(self, value: float) -> np.ndarray:
        """The child's frame in the parent's, float64 [4, 4], at `value` in rad or m."""
        if self.kind == "fixed":
            return self.origin
        motion = np.eye(4)
        if self.kind == "prismatic":
            motion[:3, 3] = value * self.axis
        else:
            motion[:3, :3] = rotation_about(self.axis, value)
        return self.origin @ motion


@dataclass(frozen=True, slots=True)
class Urdf:
    """A tree of links."""

    name: str
    links: tuple[str, ...]
    joints: Mapping[str, UrdfJoint]

    @property
    def root(self) -> str:
        """The link that hangs on nothing."""
        children = {joint.child for joint in self.joints.values()}
        return next(link for link in self.links if link not in children)

    def value(self, joint: UrdfJoint, values: Mapping[str, float]) -> float:
        """Of a joint, from those of the joints that are commanded; what is not named is 0."""
        if joint.mimics:
            return joint.factor * values.get(joint.mimics, 0.0) + joint.offset
        return values.get(joint.name, 0.0)


def read_urdf(text: str) -> Urdf:
    """Raises ConfigError for what is no URDF of a tree of known joints."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ConfigError(f"the robot description is not valid XML: {error}") from error
    if root.tag != "robot":
        raise ConfigError(f"the robot description begins with <{root.tag}>; a URDF has <robot>")
    links = tuple(link.get("name", "") for link in root.findall("link"))
    joints = [_joint(element) for element in root.findall("joint")]
    children: set[str] = set()
    for joint in joints:
        for link in (joint.parent, joint.child):
            if link not in links:
                raise ConfigError(f"joint {joint.name!r} connects link {link!r}, which is missing")
        if joint.child in children:
            raise ConfigError(f"link {joint.child!r} is the child of two joints; a URDF is a tree")
        children.add(joint.child)
    if len(set(links) - children) != 1:
        raise ConfigError(
            f"links {sorted(set(links) - children)} hang on no joint; exactly one may"
        )
    return Urdf(root.get("name", ""), links, {joint.name: joint for joint in joints})


def rotation_about(axis: np.ndarray, angle: float) -> np.ndarray:
    """Rotation float64 [3, 3] by `angle` rad about the unit vector `axis` (Rodrigues)."""
    x, y, z = axis
    sine, cosine = math.sin(angle), math.cos(angle)
    rest = 1.0 - cosine
    return np.array(
        (
            (cosine + rest * x * x, rest * x * y - sine * z, rest * x * z + sine * y),
            (rest * x * y + sine * z, cosine + rest * y * y, rest * y * z - sine * x),
            (rest * x * z - sine * y, rest * y * z + sine * x, cosine + rest * z * z),
        )
    )


def _joint(element: ElementTree.Element) -> UrdfJoint:
    name, kind = element.get("name", ""), element.get("type", "")
    if kind not in (*MOVING, "fixed"):
        raise ConfigError(f"joint {name!r} is of type {kind!r}, not {', '.join(MOVING)} or fixed")
    limit, mimic = element.find("limit"), element.find("mimic")
    axis = _numbers(element.find("axis"), "xyz", "1 0 0", name)
    length = float(np.linalg.norm(axis))
    if length == 0.0 and kind != "fixed":
        raise ConfigError(f"joint {name!r} turns about an axis of length 0")
    return UrdfJoint(
        name=name,
        kind=kind,
        parent=_link(element, "parent"),
        child=_link(element, "child"),
        origin=_pose(element.find("origin"), name),
        axis=axis / (length or 1.0),
        limits=None if limit is None or kind == "fixed" else _limits(limit, kind, name),
        mimics="" if mimic is None else mimic.get("joint", ""),
        factor=1.0 if mimic is None else _number(mimic, "multiplier", "1", name),
        offset=0.0 if mimic is None else _number(mimic, "offset", "0", name),
    )


def _limits(element: ElementTree.Element, kind: str, joint: str) -> Limits:
    endless = kind == "continuous"
    return Limits(
        -math.inf if endless else _number(element, "lower", "0", joint),
        math.inf if endless else _number(element, "upper", "0", joint),
        _number(element, "velocity", "inf", joint),
    )


def _link(element: ElementTree.Element, end: str) -> str:
    found = element.find(end)
    return "" if found is None else found.get("link", "")


def _pose(element: ElementTree.Element | None, joint: str) -> np.ndarray:
    roll, pitch, yaw = _numbers(element, "rpy", "0 0 0", joint)
    pose = np.eye(4)
    pose[:3, :3] = (
        rotation_about(np.array([0.0, 0.0, 1.0]), yaw)
        @ rotation_about(np.array([0.0, 1.0, 0.0]), pitch)
        @ rotation_about(np.array([1.0, 0.0, 0.0]), roll)
    )
    pose[:3, 3] = _numbers(element, "xyz", "0 0 0", joint)
    return pose


def _numbers(element: ElementTree.Element | None, key: str, default: str, joint: str) -> np.ndarray:
    text = default if element is None else element.get(key, default)
    try:
        numbers = np.array([float(part) for part in text.split()])
    except ValueError:
        numbers = np.array([])
    if numbers.shape != (3,) or not np.isfinite(numbers).all():
        raise ConfigError(f"joint {joint!r} has {key}={text!r}; give three finite numbers")
    return numbers


def _number(element: ElementTree.Element, key: str, default: str, joint: str) -> float:
    text = element.get(key, default)
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"joint {joint!r} has {key}={text!r}; give a number") from None
