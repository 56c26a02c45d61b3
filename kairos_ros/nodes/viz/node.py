"""The viz node: the whole fleet as markers for rviz, drawn only while somebody looks.

One thread: it looks at the fleet's topics once per drawing and sends what has changed.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from geometry_msgs.msg import TransformStamped
from rclpy.event_handler import PublisherEventCallbacks, QoSPublisherMatchedInfo
from sensor_msgs.msg import Image
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import MarkerArray

from kairos_ros.core.fleet_names import COMMON
from kairos_ros.nodes import qos
from kairos_ros.nodes.diagnostics import DiagnosticsPublisher
from kairos_ros.nodes.fleet_namespace import fleet_of
from kairos_ros.nodes.hidden_node import hidden_node
from kairos_ros.nodes.managed import ManagedNode
from kairos_ros.nodes.process import begin
from kairos_ros.nodes.timers import every
from kairos_ros.nodes.viz.cameras import mosaic_message
from kairos_ros.nodes.viz.messages import everything_gone, marker_array, tf_message, transforms
from kairos_ros.nodes.viz.parameters import VIZ_PARAMETERS, arm_entries
from kairos_ros.nodes.viz.scene import SceneBuilder
from kairos_ros.nodes.viz.subscriptions import (
    CAMERAS,
    CHUNKS,
    JOINTS,
    SAFETY,
    SERVING,
    Subscriptions,
)
from kairos_ros.viz.chunk_layer import chunks
from kairos_ros.viz.fleet_layer import arms, fleet
from kairos_ros.viz.places import Grid
from kairos_ros.viz.safety_layer import safety
from kairos_ros.viz.scene import Scene
from kairos_ros.viz.scheduler_layer import scheduler
from kairos_ros.viz.shape import Shape
from kairos_ros.viz.shown import Shown

AGAIN_S = 1.5
"""What has not changed is sent again after so long."""
LIFETIME_S = 5.0
"""What is not sent again vanishes: a node that died leaves no picture of a living fleet."""
BROKEN_TOLD_EVERY_S = 10.0
"""Pictures that cannot be shown come as fast as others."""
FRAME = "fleet"
MARKERS = "markers"
CAMERA_TOPIC = "cameras"


@dataclass(frozen=True, slots=True)
class Layer:
    """One topic of markers."""

    name: str
    draw: Callable[[Scene], list[Shape]]
    needs: frozenset[str]


LAYERS = (
    Layer("fleet", fleet, frozenset({SERVING, SAFETY})),
    Layer("robots", arms, frozenset({JOINTS})),
    Layer("chunks", chunks, frozenset({CHUNKS, JOINTS})),
    Layer("scheduler", scheduler, frozenset({SERVING})),
    Layer("safety", safety, frozenset({SAFETY, JOINTS})),
)
"""Places and bodies come with JOINTS: a robot description is among them."""


class VizNode(ManagedNode):
    """Raises ConfigError for a parameter that is wrong."""

    def __init__(self) -> None:
        super().__init__("viz", VIZ_PARAMETERS, namespace=COMMON)
        self._diagnostics = DiagnosticsPublisher(self, fleet_of(self))
        every(self, 1.0, self._publish_diagnostics)
        self._nothing_drawn()

    def set_up(self) -> None:
        """Opens the topics of its drawings. Raises ConfigError for a file that cannot be read."""
        grid = Grid(self.values["columns"], self.values["spacing_m"], self.values["row_spacing_m"])
        names = fleet_of(self)
        self._frame = self.values["frame"] or f"{names.prefix}{FRAME}"
        self.builder = SceneBuilder(self._frame, grid, arm_entries(self.values["arms"]), names)
        self._sources = hidden_node(self)
        self._fleet = Subscriptions(self._sources, self.builder.sources, self.values["max_robots"])
        self._topics = {}
        self._shown = {}
        for layer in LAYERS:
            shown = Shown(AGAIN_S)
            self._shown[layer.name] = shown
            self._topics[layer.name] = self.create_publisher(
                MarkerArray,
                names.common(f"{MARKERS}/{layer.name}"),
                qos.EVENTS,
                event_callbacks=PublisherEventCallbacks(matched=_when_found(shown)),
            )
        self._tf_static = self.create_publisher(TFMessage, "/tf_static", qos.ANNOUNCEMENT)
        self._tf = self.create_publisher(TFMessage, "/tf", qos.EVENTS)
        self._cameras = self.create_publisher(Image, names.common(CAMERA_TOPIC), qos.TELEMETRY)
        self._tf_prefix = names.prefix
        self._origins: dict[str, tuple[float, float, float]] = {}
        self._placed: list[TransformStamped] = []
        self._cameras_due_s = 0.0
        self._told: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        """Of the newest picture of all cameras: those that cannot be shown, and why."""
        self._told_broken_s = -math.inf
        self._broken_pictures = self._refused = 0
        self.get_logger().info(
            f"draws at {self.values['rate_hz']:g} Hz while somebody looks at "
            f"{names.common(MARKERS)}/*; fixed frame {self._frame!r}"
        )

    def draw(self) -> None:
        """One look at the fleet, and what of it has to be sent to whoever watches."""
        began = time.monotonic()
        layers = [layer for layer in LAYERS if self._topics[layer.name].get_subscription_count()]
        purposes = frozenset[str]().union(*(layer.needs for layer in layers))
        watched = self._cameras.get_subscription_count() > 0
        self._fleet.look(purposes | ({CAMERAS} if watched else set()), self._placed)
        scene = self.builder.scene(self._fleet)
        self._place(scene)
        if layers:
            self._move(scene)
            self._send(layers, scene, began)
        if not watched:
            self._broken = {}
        elif began >= self._cameras_due_s:
            self._cameras_due_s = began + 1.0 / self.values["camera_rate_hz"]
            self._show_cameras()
        self._tell_problems()
        spent_s = time.monotonic() - began
        self._busy_s += spent_s
        if layers:
            self._drawn += 1
            self._late += spent_s > 1.0 / self.values["rate_hz"]

    def end_work(self) -> None:
        """Takes everything off the screens."""
        for name, publisher in self._topics.items():
            publisher.publish(everything_gone(self._frame))
            self._shown[name].send_all()
        for publisher in self._topics.values():
            publisher.wait_for_all_acked(rclpy.duration.Duration(seconds=0.5))

    def take_down(self) -> None:
        self._sources.destroy_node()

    def _nothing_drawn(self) -> None:
        self._drawn = self._late = self._sent = self._pictures = 0
        self._busy_s = 0.0

    def _send(self, layers: Sequence[Layer], scene: Scene, now_s: float) -> None:
        for layer in layers:
            changes = self._shown[layer.name].update(layer.draw(scene), now_s)
            if changes.draw or changes.delete:
                self._topics[layer.name].publish(marker_array(changes, LIFETIME_S))
                self._sent += len(changes.draw)

    def _place(self, scene: Scene) -> None:
        """Tells where robots stand, all in one message: it is all that a late viewer gets."""
        if scene.origins != self._origins:
            self._origins = dict(scene.origins)
            stamp = self.get_clock().now().to_msg()
            newest = list(transforms(scene.frame, self._origins, stamp))
            self._placed += newest
            self._tf_static.publish(tf_message(newest))

    def _move(self, scene: Scene) -> None:
        if not self._tf.get_subscription_count():
            return
        stamp = self.get_clock().now().to_msg()
        moving: list[TransformStamped] = []
        for robot in scene.robots.values():
            tools = robot.body.tools(robot.joint_names, robot.joints) if robot.body else []
            names = [f"{self._tf_prefix}{robot.name}/tool_{i + 1}" for i in range(len(tools))]
            moving += transforms(robot.frame, dict(zip(names, tools, strict=True)), stamp)
        if moving:
            self._tf.publish(tf_message(moving))

    def _show_cameras(self) -> None:
        """Where there is no picture, too: rviz would go on showing the last one."""
        now_ns = time.monotonic_ns()
        message, self._broken = mosaic_message(
            {
                f"{name}  {camera}": self._fleet.drawn[name].picture(camera, now_ns)
                for name, robot in sorted(self._fleet.view.robots.items())
                for camera in sorted(robot.status.cameras if robot.status else ())
            }
        )
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = self._frame
        self._cameras.publish(message)
        self._pictures += 1
        self._broken_pictures += len(self._broken)

    def _tell_problems(self) -> None:
        for robot, problem in self.builder.problems.items():
            if self._told.get(robot) != problem:
                self.get_logger().warning(f"{robot} is drawn without an arm: {problem}")
        self._told = dict(self.builder.problems)
        now_s = time.monotonic()
        if self._broken and now_s - self._told_broken_s > BROKEN_TOLD_EVERY_S:
            self._told_broken_s = now_s
            self.get_logger().warning(_broken_text(self._broken))

    def _publish_diagnostics(self) -> None:
        status = DiagnosticStatus(name="kairos: viz", hardware_id="kairos")
        if not self.active:
            status.level, status.message = DiagnosticStatus.OK, "not active"
            self._diagnostics.publish([status])
            return
        status.level, status.message = DiagnosticStatus.OK, "drawing" if self._drawn else "unseen"
        if self._late > self.values["diagnostics.late_warn"] * self._drawn:
            status.level = DiagnosticStatus.WARN
            status.message = f"{self._late} of {self._drawn} drawings came late: lower rate_hz"
        refused = self._fleet.counters.total()
        if refused > self._refused:
            status.level = DiagnosticStatus.WARN
            status.message = f"{refused - self._refused} messages refused"
        self._refused = refused
        if self.builder.problems:
            robot, problem = next(iter(self.builder.problems.items()))
            status.level = DiagnosticStatus.WARN
            status.message = f"{robot} is drawn without an arm: {problem}"
        if self._broken:
            status.level, status.message = DiagnosticStatus.WARN, _broken_text(self._broken)
        values = {
            "robots": len(self._fleet.view.robots),
            "drawings in the last second": self._drawn,
            "markers in the last second": self._sent,
            "pictures of all cameras in the last second": self._pictures,
            "broken camera pictures since the start": self._broken_pictures,
            "busy (ms in the last second)": f"{1e3 * self._busy_s:.0f}",
            **self._fleet.counters,
        }
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        self._nothing_drawn()
        self._diagnostics.publish([status])


def _broken_text(broken: Mapping[str, str]) -> str:
    camera, problem = next(iter(broken.items()))
    return f"{len(broken)} cameras cannot be shown; {camera!r:.100}: {problem}"


def _when_found(shown: Shown) -> Callable[[QoSPublisherMatchedInfo], None]:
    def matched(info: QoSPublisherMatchedInfo) -> None:
        if info.current_count_change > 0:
            shown.send_all()

    return matched


def main() -> int:
    """Runs the node until SIGINT or SIGTERM. Exit code 0 then, 1 after an error."""
    node, executor, stop = begin("viz_node", VizNode)
    due_s = time.monotonic()
    while not stop.is_set() and not node.over:
        for _ in range(10):  # parameter services, timers, viewers that came
            executor.spin_once(timeout_sec=0)
        if node.active:
            node.draw()
        due_s = max(due_s + 1.0 / node.values["rate_hz"], time.monotonic())
        stop.wait(due_s - time.monotonic())
    executor.shutdown()
    node.close()
    rclpy.shutdown()
    return 0
