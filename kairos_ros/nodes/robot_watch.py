"""Which robots there are, what they are at, and their newest pictures: a judge's eyes."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.exceptions import InvalidTopicNameException
from rclpy.node import Node
from rclpy.subscription import Subscription
from rclpy.validate_full_topic_name import validate_full_topic_name
from sensor_msgs.msg import CompressedImage

from kairos_ros.msg import RobotStatus
from kairos_ros.nodes import qos

SILENT_S = 5.0
"""A robot announces itself every second; without a word for so long it is gone."""
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
    no pictures.
    """

    def __init__(self, node: Node, robots: Sequence[str], cameras: Sequence[str] | None) -> None:
        self.counters: Counter[str] = Counter()
        self.seen: list[Seen] = []
        """Called with a robot in a task whenever a look at its cell is complete."""
        self.changed: list[Callable[[str], None]] = []
        """Called with the name of a robot that came, left, or began or ended a task."""
        self.robots: dict[str, Watched] = {}
        self._node = node
        self._wanted = frozenset(robots)
        self._cameras = None if cameras is None else tuple(cameras)
        self._topics: dict[str, list[Subscription]] = {}
        node.create_subscription(RobotStatus, "/kairos/robot_status", self._on_status, qos.ROSTER)
        node.create_timer(1.0, self._drop_silent)

    def _on_status(self, message: RobotStatus) -> None:
        robot = message.robot
        if self._wanted and robot not in self._wanted:
            return
        if message.state == RobotStatus.LEAVING:
            self._forget(robot, message.session)
            return
        cameras = () if self._cameras is None else self._cameras or tuple(message.image_keys)
        known = self.robots.get(robot)
        if known is None or known.cameras != cameras:
            if not self._open(robot, cameras):
                return
            self._warn_of_missing(message, cameras)
            known = None
        now_ns = time.monotonic_ns()
        if known is None or (known.session, known.task) != (message.session, message.task):
            self.robots[robot] = Watched(
                robot, message.session, message.task, message.instruction, cameras, now_ns
            )
            self._tell(robot)
            return
        known.heard_ns, known.instruction = now_ns, message.instruction

    def _open(self, robot: str, cameras: tuple[str, ...]) -> bool:
        topics = {camera: f"/{robot}/camera/{camera}/compressed" for camera in cameras}
        try:
            for topic in topics.values():
                validate_full_topic_name(topic)
        except InvalidTopicNameException:
            self.counters["unusable_name"] += 1
            return False
        self._close(robot)
        # without event handlers, each of which the executor would wait for
        self._topics[robot] = [
            self._node.create_subscription(
                CompressedImage,
                topic,
                partial(self._on_picture, robot, camera),
                qos.SENSOR,
                event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
            )
            for camera, topic in topics.items()
        ]
        return True

    def _warn_of_missing(self, message: RobotStatus, cameras: tuple[str, ...]) -> None:
        has = tuple(message.image_keys)
        if self._cameras is None or (has and set(cameras) <= set(has)):
            return
        self.counters["camera_missing"] += 1
        wanted = f"camera {sorted(set(cameras) - set(has))[0]!r}" if cameras else "any camera"
        self._node.get_logger().warning(
            f"robot {message.robot} has not {wanted}, it has {', '.join(has) or 'none'}: its cell "
            "cannot be judged"
        )

    def _on_picture(self, robot: str, camera: str, message: CompressedImage) -> None:
        watched = self.robots.get(robot)
        if watched is None:
            return
        stamp = (message.header.stamp.sec, message.header.stamp.nanosec)
        watched.pictures[camera] = (stamp, bytes(message.data))
        if watched.task and (look := watched.look()):
            for seen in self.seen:
                seen(watched, *look)

    def _drop_silent(self) -> None:
        long_ago_ns = time.monotonic_ns() - round(SILENT_S * 1e9)
        for watched in list(self.robots.values()):
            if watched.heard_ns < long_ago_ns:
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
