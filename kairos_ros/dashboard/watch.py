"""Listens to the fleet. One thread spins; everything else asks under its lock."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage

from kairos_ros.core.errors import WireError
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.dashboard.page import SILENT_AFTER_S
from kairos_ros.msg import ActionChunk, FleetState, PipelineEvent, RobotStatus, TaskEvent
from kairos_ros.nodes import qos
from kairos_ros.nodes.announcements import Announcements
from kairos_ros.nodes.bounded import FLEET_BYTES, PICTURE_BYTES, STATE_BYTES, subscribe
from kairos_ros.nodes.clients.standalone_node import StandaloneNode
from kairos_ros.nodes.messages.telemetry import event_of
from kairos_ros.nodes.timers import every
from kairos_ros.telemetry.decode import robot_reported
from kairos_ros.telemetry.events import Event
from kairos_ros.telemetry.fleet_view import FleetView

if TYPE_CHECKING:
    from kairos_ros.tracing.fleet_traces import Traces  # of an extra

UNWATCHED_AFTER_S = 5.0
"""A camera that nobody has asked for is not subscribed to: robots take no pictures for nobody."""
FORGET_AFTER_S = 60.0
"""What has left or has fallen silent leaves the page."""

T = TypeVar("T")


class CameraFeed:
    """One topic of pictures, while somebody looks."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.newest = b""
        self.newest_at_s = 0.0
        self.asked_at_s = 0.0


class Watch:
    """A context manager: a ROS node of its own that only listens."""

    def __init__(self, names: FleetNames = ROOT, traces: "Traces | None" = None) -> None:
        """names: of the fleet to watch. traces: what tasks are told to, if anything."""
        self._names, self._traces = names, traces
        self.refused: Counter[str] = Counter()
        """Messages that were refused."""
        self._view = FleetView()
        self._lock = threading.Lock()
        self._cameras: dict[tuple[str, str], CameraFeed] = {}
        self._events: dict[str, list[Subscription]] = {}
        """Of each robot."""
        self._standalone = StandaloneNode("dashboard", names=names)
        self._node = self._standalone.node
        self._announcements = Announcements(self._node.get_logger(), self.refused)
        self._follow(FleetState, names.common("fleet_state"), qos.TELEMETRY, self._view.take)
        self._listen(RobotStatus, names.common("robot_status"), self._on_status, qos.ROSTER)
        self._follow(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS, self._view.take)
        every(self._node, 1.0, self._tidy)

    def __enter__(self) -> "Watch":
        self._standalone.spin_in_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._standalone.close()
        if self._traces is not None:
            self._traces.close()

    @property
    def failure(self) -> str:
        """Why nothing is heard any more; empty while all is well."""
        return self._standalone.failure

    def read(self, draw: Callable[[FleetView], T]) -> T:
        """`draw(view)`, while nothing changes."""
        with self._lock:
            return draw(self._view)

    def picture(self, robot: str, key: str) -> bytes:
        """The newest JPEG of a camera; empty where none came lately: robots send them during tasks
        only, and an older one does not show who is in the cell now.

        Raises KeyError for a robot or a camera that has not announced itself: what a browser asks
        for never becomes the name of a topic.
        """
        with self._lock:
            status = self._view.robots[robot].status
            if status is None or key not in status.cameras:
                raise KeyError(key)
            camera = self._cameras.get((robot, key))
            if camera is not None:
                now_s = camera.asked_at_s = time.monotonic()
                return camera.newest if now_s - camera.newest_at_s <= SILENT_AFTER_S else b""
        self._standalone.executor.create_task(self._look, robot, key)
        return b""

    def _listen(
        self,
        kind: type,
        topic: str,
        callback: Callable[[Any], None],
        profile: QoSProfile,
        most_bytes: int = STATE_BYTES,
    ) -> Subscription:
        return subscribe(
            self._node,
            kind,
            topic,
            callback,
            profile,
            most_bytes=most_bytes,
            refused=self._on_unreadable,
        )

    def _follow(
        self, kind: type, topic: str, profile: QoSProfile, take: Callable[[Event], None]
    ) -> Subscription:
        """take: gets what is said on a topic, under the lock."""

        def came(message: Any) -> None:
            try:
                event = event_of(message, topic, time.monotonic(), self._names)
            except WireError as error:
                self._on_unreadable(error, b"")
                return
            if event is not None:
                with self._lock:
                    take(event)

        return self._listen(kind, topic, came, profile, FLEET_BYTES)

    # Callbacks of the executor thread.

    def _on_unreadable(self, error: WireError, raw: bytes) -> None:
        with self._lock:
            self.refused["refused_message"] += 1

    def _look(self, robot: str, key: str) -> None:
        if (robot, key) in self._cameras:
            return

        def came(picture: CompressedImage) -> None:
            with self._lock:
                camera.newest, camera.newest_at_s = bytes(picture.data), time.monotonic()

        camera = CameraFeed(
            self._listen(
                CompressedImage,
                self._names.robot(robot, f"camera/{key}/compressed"),
                came,
                qos.SENSOR,
                PICTURE_BYTES,
            )
        )
        camera.asked_at_s = time.monotonic()
        with self._lock:
            self._cameras[robot, key] = camera

    def _tidy(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            old = [k for k, c in self._cameras.items() if now_s - c.asked_at_s > UNWATCHED_AFTER_S]
            unused = [self._cameras.pop(key).subscription for key in old]
            self._view.forget(now_s - FORGET_AFTER_S)
            for name in self._events.keys() - self._view.robots.keys():
                unused += self._events.pop(name)
            if self._traces is not None:
                self._traces.tell()
        for subscription in unused:
            self._node.destroy_subscription(subscription)

    def _on_status(self, status: RobotStatus) -> None:
        with self._lock:
            if self._announcements.read(status, self._view.robots) is None:
                return
            reported = robot_reported(status, "", time.monotonic())
            self._view.take(reported)
            if self._traces is not None:
                self._traces.take(reported)
        if status.robot not in self._events:
            self._events[status.robot] = list(self._listen_to(status.robot))

    def _listen_to(self, robot: str) -> Iterator[Subscription]:
        topic = self._names.robot
        yield self._follow(
            PipelineEvent, topic(robot, "pipeline_events"), qos.EVENTS, self._view.take
        )
        if (traces := self._traces) is not None:
            yield self._follow(ActionChunk, topic(robot, "action_chunk"), qos.EXCHANGE, traces.take)
            yield self._follow(TaskEvent, topic(robot, "task_events"), qos.EVENTS, traces.take)
