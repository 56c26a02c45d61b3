"""Which robots there are, what they are at, and their newest pictures: a judge's eyes."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rclpy.node import Node
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage

from kairos_ros.core.errors import ConfigError, WireError
from kairos_ros.core.wire_check import ROBOTS, is_name
from kairos_ros.msg import RobotStatus
from kairos_ros.nodes import qos
from kairos_ros.nodes.announcements import Announcements
from kairos_ros.nodes.bounded import PICTURE_BYTES, subscribe
from kairos_ros.nodes.fleet_namespace import fleet_of
from kairos_ros.nodes.throttle import Throttle
from kairos_ros.nodes.timers import every

SILENT_S = 5.0
"""A robot announces itself every second; without a word for so long it is gone."""
TURN_S = 0.02
"""Between two robots whose topics are opened or closed, which takes milliseconds: others wait for
their verdicts while hundreds come."""
Stamp = tuple[int, int]


@dataclass(slots=True)
class Watched:
    """One robot."""

    robot: str
    session: str
    task: str
    instruction: str
    cameras: tuple[str, ...]
    heard_ns: int
    pictures: dict[str, tuple[Stamp, bytes]] = field(default_factory=dict)
    """Camera -> its newest picture."""

    def look(self) -> tuple[Stamp, tuple[bytes, ...]] | None:
        """The pictures of one look, in the order of the cameras; None while one is missing."""
        newest = [self.pictures.get(camera) for camera in self.cameras]
        stamps = {one[0] for one in newest if one}
        if not newest or None in newest or len(stamps) != 1:
            return None
        return stamps.pop(), tuple(one[1] for one in newest if one)


Seen = Callable[[Watched, Stamp, tuple[bytes, ...]], None]


class RobotWatch:
    """Opens the camera topics of robots as they announce themselves.

    robots: whom to watch; empty: everybody. cameras: keys; empty: all that a robot announces; None:
    no pictures. most: robots at a time. Raises ConfigError for a camera that cannot be a topic.
    """

    def __init__(
        self,
        node: Node,
        robots: Sequence[str],
        cameras: Sequence[str] | None,
        most: int = ROBOTS,
    ) -> None:
        if odd := [camera for camera in cameras or () if not is_name(camera)]:
            raise ConfigError(f"parameter cameras: {odd[0]!r} is no ROS name")
        self.counters: Counter[str] = Counter()
        self.seen: list[Seen] = []
        """Called with a robot in a task in known words whenever a look at its cell is complete."""
        self.changed: list[Callable[[str], None]] = []
        """Called with the name of a robot that came, left, or began or ended a task."""
        self.robots: dict[str, Watched] = {}
        self._node, self._names = node, fleet_of(node)
        self._wanted = frozenset(robots)
        self._cameras = None if cameras is None else tuple(cameras)
        self._topics: dict[str, list[Subscription]] = {}
        self._waiting: dict[str, RobotStatus] = {}
        """Robots whose topics are to be opened, and their newest status."""
        self._silent: list[Watched] = []
        """Robots whose topics are to be closed."""
        self._throttle = Throttle(node.get_logger(), burst=20, every_s=1.0)
        self._announcements = Announcements(node.get_logger(), self.counters, most)
        subscribe(
            node,
            RobotStatus,
            self._names.common("robot_status"),
            self._on_status,
            qos.ROSTER,
            refused=self._announcements.refuse,
        )
        every(node, 1.0, self._look_for_silent)
        self._turn = every(node, TURN_S, self._take_turn)
        self._turn.cancel()

    def watch(self, robots: Sequence[str]) -> None:
        """Watches these from now on, as they announce themselves; empty: everybody."""
        self._wanted = frozenset(robots)
        for one in list(self.robots.values()):
            if self._wanted and one.robot not in self._wanted:
                self._forget(one.robot, one.session)
        for robot in self._waiting.keys() - self._wanted if self._wanted else ():
            del self._waiting[robot]

    def _on_status(self, message: RobotStatus) -> None:
        robot = message.robot
        if self._wanted and robot not in self._wanted:
            return
        here = self.robots.keys() | self._waiting.keys()
        if self._announcements.read(message, here) is None:
            return
        if message.state == RobotStatus.LEAVING:
            waiting = self._waiting.get(robot)
            if waiting is not None and waiting.session == message.session:
                del self._waiting[robot]
            self._forget(robot, message.session)
            return
        known = self.robots.get(robot)
        if robot in self._waiting or known is None or known.cameras != self._cameras_of(message):
            self._waiting[robot] = message
            if self._turn.is_canceled():  # nobody came just now
                self._take_turn()
                self._turn.reset()
            return
        self._follow(message, known)

    def _take_turn(self) -> None:
        if self._silent:
            self._drop(self._silent.pop())
            return
        if not self._waiting:
            self._turn.cancel()
            return
        robot = next(iter(self._waiting))
        message = self._waiting.pop(robot)
        self._open(robot, self._cameras_of(message))
        self._warn_of_missing(message, self._cameras_of(message))
        self._follow(message, None)

    def _cameras_of(self, message: RobotStatus) -> tuple[str, ...]:
        return () if self._cameras is None else self._cameras or tuple(message.image_keys)

    def _follow(self, message: RobotStatus, known: Watched | None) -> None:
        robot, cameras = message.robot, self._cameras_of(message)
        now_ns = time.monotonic_ns()
        if known is None or (known.session, known.task) != (message.session, message.task):
            self.robots[robot] = Watched(
                robot, message.session, message.task, message.instruction, cameras, now_ns
            )
            self._tell(robot)
            return
        known.heard_ns, known.instruction = now_ns, message.instruction

    def _open(self, robot: str, cameras: tuple[str, ...]) -> None:
        self._close(robot)
        self._topics[robot] = [
            subscribe(
                self._node,
                CompressedImage,
                self._names.robot(robot, f"camera/{camera}/compressed"),
                partial(self._on_picture, robot, camera),
                qos.SENSOR,
                most_bytes=PICTURE_BYTES,
                refused=self._on_bad_picture,
            )
            for camera in dict.fromkeys(cameras)
        ]

    def _on_bad_picture(self, error: WireError, raw: bytes) -> None:
        self.counters["refused_picture"] += 1
        self._throttle.warning("picture", f"a picture is ignored: {error}")

    def _warn_of_missing(self, message: RobotStatus, cameras: tuple[str, ...]) -> None:
        has = tuple(message.image_keys)
        if self._cameras is None or (has and set(cameras) <= set(has)):
            return
        self.counters["camera_missing"] += 1
        wanted = f"camera {sorted(set(cameras) - set(has))[0]!r}" if cameras else "any camera"
        self._throttle.warning(
            "camera missing",
            f"robot {message.robot} has not {wanted}, it has {', '.join(has) or 'none'}: its cell "
            "cannot be judged",
        )

    def _on_picture(self, robot: str, camera: str, message: CompressedImage) -> None:
        watched = self.robots.get(robot)
        if watched is None:
            return
        stamp = (message.header.stamp.sec, message.header.stamp.nanosec)
        watched.pictures[camera] = (stamp, bytes(message.data))
        if watched.task and watched.instruction and (look := watched.look()):
            for seen in self.seen:
                seen(watched, *look)

    def _look_for_silent(self) -> None:
        self._silent = [one for one in self.robots.values() if self._is_silent(one)]
        if self._silent and self._turn.is_canceled():
            self._turn.reset()

    def _is_silent(self, watched: Watched) -> bool:
        return time.monotonic_ns() - watched.heard_ns > SILENT_S * 1e9

    def _drop(self, watched: Watched) -> None:
        if self.robots.get(watched.robot) is watched and self._is_silent(watched):
            self.counters["fell_silent"] += 1
            self._forget(watched.robot, watched.session)

    def _forget(self, robot: str, session: str) -> None:
        if robot in self.robots and self.robots[robot].session == session:
            del self.robots[robot]
            self._close(robot)
            self._tell(robot)

    def _tell(self, robot: str) -> None:
        for changed in self.changed:
            changed(robot)

    def _close(self, robot: str) -> None:
        for subscription in self._topics.pop(robot, []):
            self._node.destroy_subscription(subscription)
