"""Listens to the fleet. One thread spins; everything else asks under its lock."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.exceptions import InvalidTopicNameException
from rclpy.subscription import Subscription
from rclpy.validate_full_topic_name import validate_full_topic_name
from sensor_msgs.msg import CompressedImage

from kairos_ros.dashboard.board import SILENT_AFTER_S, Board, EngineRow, Health, RobotCard
from kairos_ros.msg import EngineState, FleetState, PipelineEvent, RobotState, RobotStatus
from kairos_ros.nodes import qos
from kairos_ros.nodes.side_node import SideNode

ACTIVITIES = {
    RobotStatus.IDLE: "idle",
    RobotStatus.RUNNING: "running",
    RobotStatus.HOLDING: "holding",
    RobotStatus.LEAVING: "gone",
}
LEVELS = {
    DiagnosticStatus.OK: "ok",
    DiagnosticStatus.WARN: "warn",
    DiagnosticStatus.ERROR: "error",
    DiagnosticStatus.STALE: "stale",
}
UNWATCHED_AFTER_S = 5.0
"""A camera that nobody has asked for is not subscribed to: robots take no pictures for nobody."""
FORGET_AFTER_S = 60.0
"""What has left or has fallen silent leaves the page."""

T = TypeVar("T")


class Camera:
    """One topic of pictures, while somebody looks."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.newest = b""
        self.newest_at_s = 0.0
        self.asked_at_s = 0.0


class Watch:
    """A context manager: a ROS node of its own that only listens."""

    def __init__(self) -> None:
        self._board = Board()
        self._lock = threading.Lock()
        self._cameras: dict[tuple[str, str], Camera] = {}
        self._events: dict[str, Subscription] = {}
        self._side = SideNode("dashboard")
        self._node = self._side.node
        subscribe = self._node.create_subscription
        subscribe(FleetState, "/kairos/fleet_state", self._on_fleet, qos.TELEMETRY)
        subscribe(RobotStatus, "/kairos/robot_status", self._on_status, qos.ROSTER)
        subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.DIAGNOSTICS)
        self._node.create_timer(1.0, self._tidy)

    def __enter__(self) -> "Watch":
        self._side.spin_in_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._side.close()

    def read(self, draw: Callable[[Board], T]) -> T:
        """`draw(board)`, while nothing changes."""
        with self._lock:
            return draw(self._board)

    def picture(self, robot: str, key: str) -> bytes:
        """The newest JPEG of a camera; empty where none came lately: robots send them during tasks
        only, and an older one does not show who is in the cell now.

        Raises KeyError for a robot or a camera that has not announced itself: what a browser asks
        for never becomes the name of a topic.
        """
        with self._lock:
            if key not in self._board.robots[robot].cameras:
                raise KeyError(key)
            camera = self._cameras.get((robot, key))
            if camera is not None:
                now_s = camera.asked_at_s = time.monotonic()
                return camera.newest if now_s - camera.newest_at_s <= SILENT_AFTER_S else b""
        self._side.executor.create_task(self._look, robot, key)
        return b""

    # Callbacks of the executor thread.

    def _look(self, robot: str, key: str) -> None:
        if (robot, key) in self._cameras:
            return

        def came(picture: CompressedImage) -> None:
            with self._lock:
                camera.newest, camera.newest_at_s = bytes(picture.data), time.monotonic()

        camera = Camera(
            self._node.create_subscription(
                CompressedImage, f"/{robot}/camera/{key}/compressed", came, qos.SENSOR
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
            robots, health = self._board.robots, self._board.health
            for name in [n for n, r in robots.items() if now_s - r.heard_at_s > FORGET_AFTER_S]:
                del robots[name]
                unused += [self._events.pop(name)]
            for name in [n for n, h in health.items() if now_s - h.heard_at_s > FORGET_AFTER_S]:
                del health[name]
        for subscription in unused:
            self._node.destroy_subscription(subscription)

    def _on_status(self, status: RobotStatus) -> None:
        if not _is_name(f"/{status.robot}"):
            return  # the serving node counts it and tells
        with self._lock:
            card = self._board.robots.get(status.robot)
            if card is None or card.session != status.session:
                card = RobotCard(status.robot, status.session)
                self._board.robots[status.robot] = card
            card.heard_at_s = time.monotonic()
            card.activity = ACTIVITIES.get(status.state, "unknown")
            card.instruction = status.instruction
            card.round, card.horizon = status.round, status.horizon
            card.buffered_s = status.buffered / (status.control_rate_hz or 1.0)
            card.stalled_s = status.stalled_s
            card.tasks_done, card.tasks_succeeded = status.tasks_done, status.tasks_succeeded
            card.dropped, card.guarded = status.chunks_dropped, status.actions_guarded
            card.cameras = tuple(key for key in status.image_keys if _is_name(f"/{key}"))
        if status.robot not in self._events:
            self._events[status.robot] = self._node.create_subscription(
                PipelineEvent, f"/{status.robot}/pipeline_events", self._on_event, qos.EVENTS
            )

    def _on_event(self, event: PipelineEvent) -> None:
        with self._lock:
            card = self._board.robots.get(event.robot)
            if card is None:
                return
            card.mode = event.after
            said = event.reason or event.trigger
            component = event.component
            named = not component or said.startswith((component, f"the {component} "))
            card.event = said if named else f"{component}: {said}"
            card.event_at_s = time.monotonic()

    def _on_fleet(self, fleet: FleetState) -> None:
        with self._lock:
            board = self._board
            board.server, board.active = fleet.server, fleet.active
            board.server_heard_at_s = time.monotonic()
            board.scheduling, board.horizon = fleet.scheduling, fleet.horizon
            board.queue = fleet.queue_length
            board.requests_per_s, board.chunks_per_s = fleet.requests_per_s, fleet.chunks_per_s
            board.engines = tuple(map(_engine, fleet.engines))
            board.counters = dict(zip(fleet.counter_names, fleet.counter_values, strict=False))
            for seen in fleet.robots:
                _schedule(board.robots.get(seen.robot), seen)

    def _on_diagnostics(self, array: DiagnosticArray) -> None:
        now_s = time.monotonic()
        with self._lock:
            for status in array.status:
                level = LEVELS.get(status.level, "stale")
                self._board.health[status.name] = Health(status.name, level, status.message, now_s)
                card = self._board.robots.get(status.hardware_id)
                mode = next((value.value for value in status.values if value.key == "mode"), "")
                if card is not None and mode:
                    card.mode = mode  # what it has been since before this page was opened


def _is_name(topic: str) -> bool:
    try:
        validate_full_topic_name(topic)
    except InvalidTopicNameException:
        return False
    return True


def _schedule(card: RobotCard | None, seen: RobotState) -> None:
    if card is None:
        return
    card.wait_ratio, card.reason = seen.wait_ratio, seen.reason
    card.horizon_reason = seen.horizon_reason
    card.waits = "in an engine" if seen.running else "queued" if seen.pending else ""


def _engine(engine: EngineState) -> EngineRow:
    return EngineRow(
        name=engine.engine,
        tier=engine.tier,
        state=engine.state,
        policy=engine.policy,
        load=engine.load,
        batch=engine.batch_size,
        max_batch=engine.max_batch,
        requests=engine.requests,
        restarts=engine.restarts,
        rtt_s=engine.rtt_s,
        error=engine.last_error,
    )
