"""The cameras of a simulated arm: rendered in a thread of their own, at their own rate."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.driver_node.messages import compressed_image, image
from kairos_ros.nodes import qos
from kairos_ros.robot.adapters.sim.sim_cameras import MujocoCameras, jpeg
from kairos_ros.robot.description.arm import ArmDescription


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a picture shows: joint positions and the places of the balls."""

    qpos: np.ndarray
    mocap_pos: np.ndarray


class ArmCameras:
    """Publishes `camera/NAME/image_raw` (rgb8) and `camera/NAME/compressed` (JPEG).

    Nothing is rendered for a camera that nobody looks at. Raises ConfigError for a camera that the
    arm does not have.
    """

    def __init__(
        self, node: Node, arm: ArmDescription, images: Mapping[str, tuple[int, int]], rate_hz: float
    ) -> None:
        """`images`: camera -> (height_px, width_px)."""
        names = list(images)
        unknown = sorted(set(names) - set(arm.views))
        if unknown:
            raise ConfigError(
                f"{arm.name} has no camera {', '.join(unknown)}; it has {', '.join(arm.views)}"
            )
        self.frozen = False
        """The same picture is sent again and again, as of now."""
        self.stopped = False
        """None is sent."""
        self._arm, self._images, self._period_s = arm, images, 1.0 / rate_hz
        self._clock = node.get_clock()
        self._frames = {name: camera_frame(node, name) for name in names}
        quiet = PublisherEventCallbacks(use_default_callbacks=False)
        self._raw = {
            name: node.create_publisher(
                Image, f"camera/{name}/image_raw", qos.TELEMETRY, event_callbacks=quiet
            )
            for name in names
        }
        self._compressed = {
            name: node.create_publisher(
                CompressedImage, f"camera/{name}/compressed", qos.TELEMETRY, event_callbacks=quiet
            )
            for name in names
        }
        self._last: dict[str, np.ndarray] = {}
        self._newest: Snapshot | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cameras", daemon=True)
        if names:
            self._thread.start()

    def show(self, qpos: np.ndarray, mocap_pos: np.ndarray) -> None:
        """What the cameras see from now on. Called by the thread that moves the arm."""
        self._newest = Snapshot(qpos.copy(), mocap_pos.copy())

    def close(self) -> None:
        self._end.set()
        if self._frames:
            self._thread.join()

    def _run(self) -> None:
        from kairos_ros.lab.world.world import ArmWorld

        world = ArmWorld(self._arm)
        cameras = MujocoCameras(SimpleNamespace(unwrapped=world), self._images)
        due = time.monotonic()
        while not self._end.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._period_s, time.monotonic())
            shown = self._newest
            if shown is None or self.stopped:
                continue
            world.show(shown.qpos, shown.mocap_pos)
            for name in self._frames:
                self._publish(name, cameras)
        cameras.close()

    def _publish(self, name: str, cameras: MujocoCameras) -> None:
        raw, compressed = self._raw[name], self._compressed[name]
        wanted = raw.get_subscription_count(), compressed.get_subscription_count()
        if not any(wanted):
            return
        stamp = self._clock.now().to_msg()
        if not (self.frozen and name in self._last):
            self._last[name] = cameras.frame(name)
        pixels, frame = self._last[name], self._frames[name]
        if wanted[0]:
            raw.publish(image(stamp, frame, pixels))
        if wanted[1]:
            compressed.publish(compressed_image(stamp, frame, jpeg(pixels, self._images[name])))


def camera_frame(node: Node, name: str) -> str:
    """Name of the frame of a camera's pictures: z forward, x right, y down."""
    return f"{node.get_namespace().strip('/')}/camera_{name}_optical_frame"
