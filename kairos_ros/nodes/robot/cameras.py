"""A robot's pictures on topics of their own, for judges and people, while somebody subscribes."""

import time
from collections.abc import Callable

from builtin_interfaces.msg import Time
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.exchange import Observation
from kairos_ros.nodes import qos
from kairos_ros.nodes.messages.pipeline import picture_message
from kairos_ros.nodes.timers import period_ns
from kairos_ros.robot.cameras.recent_frames import CameraFrame, RecentFrames

EARLY = 0.25
"""A picture taken for a request saves the one that is due within this share of a period."""


class RobotCameras:
    """Publishes `camera/<key>/compressed`. Used by the control thread only, `frames` by any.

    All pictures of one look carry the same stamp.
    """

    def __init__(self, node: Node, keys: list[str], rate_hz: float) -> None:
        self.frames = RecentFrames()
        self.published: Callable[[Time, str], None] | None = None
        """Called with the stamp of a look, and its task."""
        self._clock = node.get_clock()
        self.set_rate(rate_hz)
        self._due_ns = 0
        for key in keys:
            if not (key.isascii() and key.isidentifier()) or "__" in key:
                raise ConfigError(
                    f"camera {key!r} has no name for a ROS topic: use letters, digits and _, no "
                    "digit first; what the policy calls its pictures says parameter camera_map"
                )
        self._topics = {
            key: node.create_publisher(
                CompressedImage,
                f"camera/{key}/compressed",
                qos.SENSOR,
                event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
            )
            for key in keys
        }

    def set_rate(self, rate_hz: float) -> None:
        """Pictures are shown so often, while somebody looks; 0: never."""
        self._every_ns = period_ns(rate_hz) if rate_hz > 0 else 0

    def look(self, observe: Callable[[], Observation], task: str) -> None:
        """Takes a look if one is due and somebody wants to see it."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns and self._watched():
            self._publish(observe(), now_ns, task)

    def show(self, seen: Observation, looked_ns: int, task: str) -> None:
        """Somebody has looked anyway: saves the next look."""
        if looked_ns >= self._due_ns - EARLY * self._every_ns and self._watched():
            self._publish(seen, looked_ns, task)

    def hurry(self) -> None:
        """The next look is due now."""
        self._due_ns = 0

    def _watched(self) -> bool:
        watched = any(topic.get_subscription_count() for topic in self._topics.values())
        return watched and self._every_ns > 0

    def _publish(self, seen: Observation, looked_ns: int, task: str) -> None:
        """A look is not younger than its oldest picture, however often that is looked at."""
        taken_ns = looked_ns if seen.taken_ns is None else seen.taken_ns
        self._due_ns = max(self._due_ns, looked_ns - self._every_ns) + self._every_ns
        stamp = self._clock.now().to_msg()
        self.frames.note((stamp.sec, stamp.nanosec), CameraFrame(taken_ns, task))
        for key, topic in self._topics.items():
            if topic.get_subscription_count():
                topic.publish(picture_message(stamp, key, seen.images[key]))
        if self.published is not None:
            self.published(stamp, task)
