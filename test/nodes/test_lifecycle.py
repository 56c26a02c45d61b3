"""Nodes with a lifecycle, as a lifecycle manager or `ros2 lifecycle set` takes them through it."""

import signal
import time

import cv2
import numpy as np
import pytest
from kairos_ros.msg import RobotStatus, SafetyVerdict
from lifecycle_msgs.msg import State, Transition
from managed import Managed
from sensor_msgs.msg import CompressedImage
from visualization_msgs.msg import MarkerArray
from wire import PATIENCE_S, until

from kairos_ros.bringup import plan as bringup
from kairos_ros.nodes import qos
from kairos_ros.recording.reader import Bag

CONFIGURE, CLEANUP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP
ACTIVATE, DEACTIVATE = Transition.TRANSITION_ACTIVATE, Transition.TRANSITION_DEACTIVATE
UNCONFIGURED, INACTIVE = State.PRIMARY_STATE_UNCONFIGURED, State.PRIMARY_STATE_INACTIVE
ACTIVE = State.PRIMARY_STATE_ACTIVE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def picture() -> bytes:
    _, encoded = cv2.imencode(".jpg", np.full((96, 96, 3), 90, np.uint8))
    return encoded.tobytes()


class Arm:
    """A robot that is nothing but its status and one camera."""

    def __init__(self, wire, picture: bytes) -> None:
        create = wire.node.create_publisher
        self._status = create(RobotStatus, "/kairos/robot_status", qos.ANNOUNCEMENT)
        self._camera = create(CompressedImage, "/arm_1/camera/corner2/compressed", qos.SENSOR)
        self._clock, self._picture = wire.node.get_clock(), picture
        self.verdicts: list[SafetyVerdict] = []
        wire.node.create_subscription(
            SafetyVerdict, "/arm_1/safety_verdict", self.verdicts.append, qos.EXCHANGE
        )

    def look(self) -> None:
        self._status.publish(
            RobotStatus(
                robot="arm_1",
                session="s",
                task="1",
                instruction="open the drawer",
                state=RobotStatus.RUNNING,
                image_keys=["corner2"],
                control_rate_hz=30.0,
            )
        )
        picture = CompressedImage(format="jpeg", data=self._picture)
        picture.header.stamp = self._clock.now().to_msg()
        self._camera.publish(picture)

    def judged(self, within_s: float) -> bool:
        """Whether a verdict comes on new pictures."""
        began, end = self._clock.now().to_msg(), time.monotonic() + within_s

        def new() -> bool:
            frames = [(one.frame.sec, one.frame.nanosec) for one in self.verdicts]
            return any(frame >= (began.sec, began.nanosec) for frame in frames)

        while time.monotonic() < end and not new():
            self.look()
            time.sleep(0.1)
        return new()


def test_a_judge_judges_while_it_is_active_and_says_when_it_does_not(start, wire, picture):
    node = start(bringup.vlm("safety", autostart=False))
    managed, arm = Managed(wire, "/kairos/safety"), Arm(wire, picture)
    name = "kairos safety: /kairos/safety"
    assert managed.state == UNCONFIGURED
    for _ in range(2):
        assert managed.change(CONFIGURE)
        assert managed.state == INACTIVE
        until(lambda: "not active" in getattr(wire.reports.get(name), "message", ""))
        assert not arm.judged(2.0)
        assert managed.change(ACTIVATE)
        assert managed.state == ACTIVE
        assert arm.judged(PATIENCE_S)
        assert managed.change(DEACTIVATE)
        assert not arm.judged(2.0)
        assert managed.change(CLEANUP)
    assert not managed.set("model", "embedded:none")
    assert not managed.change(CONFIGURE)
    assert managed.state == UNCONFIGURED
    assert "embedded:none" in node.output()
    assert node.stop() == 0


def test_a_recorder_makes_a_bag_for_every_time_it_is_configured_and_pauses(start, wire, tmp_path):
    node = start(bringup.recorder(tmp_path / "first", autostart=False, topics="/arm_9/.*"))
    managed = Managed(wire, "/kairos/recorder")
    publisher = wire.node.create_publisher(RobotStatus, "/arm_9/said", qos.EVENTS)

    def say(number: int, heard: bool) -> None:
        until(lambda: publisher.get_subscription_count() == int(heard))
        publisher.publish(RobotStatus(robot=str(number)))

    assert managed.change(CONFIGURE)
    assert managed.change(ACTIVATE)
    say(1, heard=True)
    assert managed.change(DEACTIVATE)
    say(2, heard=False)
    assert managed.change(ACTIVATE)
    say(3, heard=True)
    assert managed.change(DEACTIVATE)
    assert managed.change(CLEANUP)
    assert not managed.change(CONFIGURE), "that folder is there"
    assert "first" in node.output().splitlines()[-1]
    assert not managed.set("out", str(tmp_path / "second"))
    assert managed.change(CONFIGURE)
    assert managed.change(ACTIVATE)
    say(4, heard=True)
    assert node.stop(signal.SIGINT) == 0
    for folder, wanted in (("first", ["1", "3"]), ("second", ["4"])):
        with Bag(tmp_path / folder) as bag:
            said = [one.body.robot for one in bag.messages(("kairos_ros/msg/RobotStatus",))]
        assert said == wanted, folder


def test_a_viz_node_takes_its_drawings_away_when_it_is_deactivated(start, wire, picture):
    node = start(bringup.viz(autostart=False))
    managed, arm = Managed(wire, "/kairos/viz"), Arm(wire, picture)
    drawn: list[int] = []

    def hear(array: MarkerArray) -> None:
        drawn.extend(marker.action for marker in array.markers)

    wire.node.create_subscription(MarkerArray, "/kairos/markers/fleet", hear, qos.EVENTS)

    def is_drawn(within_s: float) -> bool:
        drawn.clear()
        end = time.monotonic() + within_s
        while time.monotonic() < end and 0 not in drawn:  # Marker.ADD
            arm.look()
            time.sleep(0.1)
        return 0 in drawn

    for _ in range(2):
        assert managed.change(CONFIGURE)
        assert not is_drawn(1.0)
        assert managed.change(ACTIVATE)
        assert is_drawn(PATIENCE_S)
        assert managed.change(DEACTIVATE)
        until(lambda: 3 in drawn, what="for DELETEALL")
        assert not is_drawn(1.0)
        assert managed.change(CLEANUP)
    assert managed.change(Transition.TRANSITION_UNCONFIGURED_SHUTDOWN)
    assert node.process.wait(PATIENCE_S) == 0
