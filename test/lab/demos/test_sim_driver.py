"""Simulated arms as processes, met as strangers meet a driver: by standard topics alone."""

import json
import sys
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco")

from builtin_interfaces.msg import Duration
from geometry_msgs.msg import PoseStamped
from PIL import Image as Picture
from rclpy.qos import qos_profile_sensor_data
from rosbags.typesys import Stores, get_typestore
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger
from tf2_msgs.msg import TFMessage
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint
from wire import PATIENCE_S, answered, until

from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.lab.driver_node.messages import quaternion, seconds
from kairos_ros.nodes import qos
from kairos_ros.robot.description.arm import arm_called
from kairos_ros.robot.description.kinematics import Chain
from kairos_ros.robot.description.urdf import rotation_about

SO101 = arm_called("so101")
CAMERAS = ["front", "wrist"]


class Cell:
    """One driver seen from outside: the newest message of each topic, its commands and faults."""

    def __init__(self, wire, driver: str, cameras=()) -> None:
        self.wire, self.driver = wire, driver
        self.newest: dict[str, object] = {}
        self.counts: dict[str, int] = {}
        self.frames: dict[str, tuple[str, np.ndarray]] = {}
        """Child frame -> parent and pose."""
        self._hear(JointState, "joint_states", 10)
        self._hear(String, "robot_description", qos.ANNOUNCEMENT)
        self._hear(PoseStamped, "target_pose", 10)
        self._hear(Bool, "task_done", 10)
        for name in cameras:
            self._hear(Image, f"camera/{name}/image_raw", qos_profile_sensor_data)
            self._hear(CompressedImage, f"camera/{name}/compressed", 10)
        subscribe = wire.node.create_subscription
        subscribe(TFMessage, "/tf", self._on_tf, 100)
        subscribe(TFMessage, "/tf_static", self._on_tf, qos.ROSTER)
        publish = wire.node.create_publisher
        where = f"/{driver}/joint_trajectory_controller/joint_trajectory"
        self._trajectories = publish(JointTrajectory, where, 10)
        self._commands = publish(Float64MultiArray, f"/{driver}/position_controller/commands", 10)
        until(
            lambda: (
                self._trajectories.get_subscription_count()
                and self._commands.get_subscription_count()
            ),
            what=f"for the driver {driver}",
        )

    def _hear(self, kind: type, topic: str, profile) -> None:
        def on_message(message) -> None:
            self.newest[topic] = message
            self.counts[topic] = self.counts.get(topic, 0) + 1

        self.wire.node.create_subscription(kind, f"/{self.driver}/{topic}", on_message, profile)

    def _on_tf(self, message: TFMessage) -> None:
        for one in message.transforms:
            q, t = one.transform.rotation, one.transform.translation
            assert abs(q.w**2 + q.x**2 + q.y**2 + q.z**2 - 1.0) < 1e-9
            pose = np.eye(4)
            axis, sine = np.array([q.x, q.y, q.z]), np.sqrt(q.x**2 + q.y**2 + q.z**2)
            if sine > 0:
                pose[:3, :3] = rotation_about(axis / sine, 2 * np.arctan2(sine, q.w))
            pose[:3, 3] = t.x, t.y, t.z
            self.frames[one.child_frame_id] = one.header.frame_id, pose

    def next(self, topic: str):
        """A message that was sent after this call, by its stamp. A message without a stamp may be
        older: it is the second that arrives."""
        now_s, seen = time.time(), self.counts.get(topic, 0)

        def newer():
            message = self.newest[topic] if self.counts.get(topic, 0) > seen + 1 else None
            header = getattr(message, "header", None)
            return message if header is None or seconds(header.stamp) > now_s else None

        return until(newer, what=f"for {self.driver}/{topic}")

    def joints(self) -> np.ndarray:
        return np.array(self.next("joint_states").position)

    def at_rest(self) -> np.ndarray:
        """The joints once they stand still."""
        still = lambda: np.abs(self.next("joint_states").velocity).max() < 1e-3  # noqa: E731
        until(still, what="for the arm to stand still")
        return self.joints()

    def reach(self, goal, within=0.04) -> None:
        until(lambda: np.abs(self.joints() - goal).max() < within, what=f"for the arm at {goal}")

    def follow(self, names, *points: tuple[float, list[float]]) -> None:
        self._trajectories.publish(
            JointTrajectory(
                joint_names=list(names),
                points=[
                    JointTrajectoryPoint(
                        positions=list(map(float, positions)),
                        time_from_start=Duration(sec=int(at), nanosec=round(at % 1 * 1e9)),
                    )
                    for at, positions in points
                ],
            )
        )

    def go_to(self, positions) -> None:
        self._commands.publish(Float64MultiArray(data=list(map(float, positions))))

    def ask(self, kind: type, service: str, request):
        return answered(self.wire.node.create_client(kind, f"/{self.driver}/{service}"), request)

    def switch(self, name: str, on: bool) -> None:
        assert self.ask(SetBool, name, SetBool.Request(data=on)).success

    def fault(self, name: str, on: bool) -> None:
        self.switch(f"fault/{name}", on)

    def diagnostic(self, key: str) -> str:
        return self.wire.diagnostic(f"{self.driver}/driver", key)

    def pose(self, frame: str) -> np.ndarray:
        """Of a frame in "world", through /tf and /tf_static."""
        pose = np.eye(4)
        while frame != "world":
            frame, step = until(lambda frame=frame: self.frames.get(frame), what=f"for {frame}")
            pose = step @ pose
        return pose


def driver(name: str, **parameters) -> ProcessSpec:
    return ProcessSpec("sim_driver_node", "driver", namespace=name, parameters=parameters)


@pytest.fixture(scope="module")
def cell(wire, start_for_module):
    start_for_module(
        driver(
            "so101",
            cameras=["front", "wrist:48x64"],
            camera_rate_hz=20.0,
            world_pose=[1.0, 2.0, 0.5, 0.3],
        )
    )
    return Cell(wire, "so101", CAMERAS)


@pytest.fixture(scope="module")
def beyond(wire, start_for_module):
    """A Panda whose first joint somebody has pushed beyond its limit."""
    start = [3.1, *arm_called("franka").home[1:]]
    start_for_module(driver("franka", arm="franka", start=start, rate_hz=200.0))
    return Cell(wire, "franka")


def test_a_driver_describes_its_arm_and_tells_its_joints(cell):
    description = until(lambda: cell.newest.get("robot_description"))
    assert Chain.from_urdf(description.data, "base_link", "gripper_frame_link").joints
    told = cell.next("joint_states")
    assert tuple(told.name) == SO101.joints
    assert len(told.position) == len(told.velocity) == len(told.effort) == 6
    assert np.allclose(told.position, SO101.home, atol=0.04)
    assert told.header.stamp.sec > 0


def test_a_trajectory_is_carried_out_and_its_end_held(cell):
    goal = [0.3, -0.8, 0.9, 0.6, 0.2, 0.4]
    cell.follow(reversed(SO101.joints), (0.5, [0] * 6), (1.0, goal[::-1]))
    cell.reach(goal)
    before = cell.at_rest()
    cell.next("task_done")
    assert np.allclose(cell.joints(), before, atol=0.01)


def test_frames_lead_from_the_world_to_where_the_joints_say(cell):
    cell.follow(SO101.joints, (0.1, SO101.home))
    cell.reach(SO101.home)
    chain = SO101.chains[0]
    base = cell.pose("so101/base_link")
    assert np.allclose(base[:3, 3], [1.0, 2.0, 0.5])
    assert np.allclose(base[:3, 0], [np.cos(0.3), np.sin(0.3), 0.0])

    def agree() -> bool:
        tip = base @ chain.tip(cell.joints()[:5])
        return np.allclose(tip, cell.pose("so101/gripper_frame_link"), atol=0.01)

    until(agree, what="for joint states and frames to agree")
    for name in CAMERAS:
        cell.pose(f"so101/camera_{name}_optical_frame")


def test_commands_of_a_forward_controller_are_carried_out(cell):
    goal = [-0.2, -0.9, 1.1, 0.7, 0.0, 0.5]
    cell.go_to(goal)
    cell.reach(goal)


def test_a_command_that_does_not_fit_is_rejected_and_the_arm_holds(cell):
    before, rejected = cell.at_rest(), int(cell.diagnostic("rejected") or 0)
    cell.follow(["shoulder_pan", "elbow"], (0.1, [1.0, 1.0]))
    until(lambda: int(cell.diagnostic("rejected") or 0) > rejected, what="for the rejection")
    assert "unknown elbow; missing elbow_flex" in cell.diagnostic("last_rejection")
    cell.go_to([1.0])
    until(lambda: int(cell.diagnostic("rejected")) > rejected + 1, what="for the rejection")
    assert np.allclose(cell.joints(), before, atol=0.01)


def test_a_target_beyond_a_limit_is_approached_as_far_as_it_goes(cell):
    goal = list(SO101.home)
    goal[0] = 4.0
    cell.follow(SO101.joints, (0.2, goal))
    goal[0] = SO101.limits[0, 1]
    cell.reach(goal)
    until(lambda: int(cell.diagnostic("clipped_periods") or 0) > 0, what="for the diagnostic")


def test_a_controller_that_was_stopped_takes_no_commands(cell):
    cell.fault("reject", True)
    rejected, before = int(cell.diagnostic("rejected") or 0), cell.at_rest()
    cell.go_to(SO101.home)
    until(lambda: int(cell.diagnostic("rejected") or 0) > rejected, what="for the rejection")
    assert np.allclose(cell.joints(), before, atol=0.01)
    cell.fault("reject", False)
    cell.go_to(SO101.home)
    cell.reach(SO101.home)


def test_an_arm_whose_torque_is_off_sinks_and_takes_no_commands(cell):
    before, rejected = cell.joints(), int(cell.diagnostic("rejected") or 0)
    cell.switch("torque_enable", False)
    cell.go_to(SO101.home)
    until(lambda: int(cell.diagnostic("rejected") or 0) > rejected, what="for the rejection")
    until(lambda: np.abs(cell.joints() - before).max() > 0.2, what="for the arm to sink")
    cell.switch("torque_enable", True)
    cell.go_to(SO101.home)
    cell.reach(SO101.home)


def test_pictures_come_raw_and_as_jpeg_with_a_frame(cell):
    for name, (height, width) in zip(CAMERAS, [(120, 160), (48, 64)], strict=True):
        raw, small = cell.next(f"camera/{name}/image_raw"), cell.next(f"camera/{name}/compressed")
        frame = f"so101/camera_{name}_optical_frame"
        assert (raw.header.frame_id, small.header.frame_id) == (frame, frame)
        assert (raw.height, raw.width, raw.encoding, raw.step) == (height, width, "rgb8", 3 * width)
        pixels = np.frombuffer(raw.data, np.uint8).reshape(height, width, 3)
        assert pixels.std() > 10  # something is to be seen
        assert small.format == "jpeg"
        assert Picture.open(BytesIO(bytes(small.data))).size == (width, height)


def test_a_frozen_camera_sends_the_same_picture_with_new_stamps(cell):
    topic = "camera/front/image_raw"
    cell.fault("freeze_cameras", True)
    before = cell.next(topic)
    cell.go_to([1.0, -0.5, 0.5, 0.5, 0.0, 0.5])
    cell.reach([1.0, -0.5, 0.5, 0.5, 0.0, 0.5])
    after = cell.next(topic)
    assert bytes(after.data) == bytes(before.data)
    assert after.header.stamp != before.header.stamp
    cell.fault("freeze_cameras", False)
    until(lambda: bytes(cell.next(topic).data) != bytes(before.data), what="for a new picture")


def test_a_silent_driver_tells_nothing_until_it_is_back(cell):
    cell.fault("silent", True)

    def silent():
        heard = cell.counts["joint_states"]
        for _ in range(5):
            cell.next("task_done")
        return cell.counts["joint_states"] == heard

    until(silent, what="for what was under way")
    cell.fault("silent", False)
    cell.joints()


def test_a_new_task_is_another_place_to_touch(cell):
    def place() -> np.ndarray:
        at = cell.next("target_pose")
        assert at.header.frame_id == "so101/base_link"
        return np.array([at.pose.position.x, at.pose.position.y, at.pose.position.z])

    before = place()
    assert cell.ask(Trigger, "new_task", Trigger.Request()).success
    after = place()
    assert not np.allclose(before, after)
    low, high = SO101.reach
    assert (after >= low).all()
    assert (after <= high).all()
    assert not cell.next("task_done").data


def test_a_joint_beyond_its_limit_stays_there_until_it_is_told(beyond):
    arm = arm_called("franka")
    assert beyond.joints()[0] == pytest.approx(3.1, abs=0.01)
    beyond.go_to([3.1, *arm.home[1:]])
    beyond.reach([arm.limits[0, 1], *arm.home[1:]], within=0.01)
    finger = [*arm.home[:7], 0.02]
    beyond.follow(arm.joints, (1.0, finger))
    beyond.reach(finger, within=0.01)


def test_a_camera_that_the_arm_does_not_have_is_named(start):
    node = start(driver("arm", cameras=["side"]))
    assert node.process.wait(PATIENCE_S) == 1
    assert "so101 has no camera side; it has front, wrist" in node.output()


@pytest.mark.parametrize("seed", range(20))
def test_a_quaternion_is_the_rotation_that_it_was_made_from(seed):
    rng = np.random.default_rng(seed)
    axis = rng.normal(size=3)
    axis /= np.linalg.norm(axis)
    angle = rng.uniform(0, np.pi) if seed else np.pi
    pose = np.eye(4)
    pose[:3, :3] = rotation_about(axis, angle)
    q = quaternion(pose)
    assert np.allclose([q.x, q.y, q.z], axis * np.sin(angle / 2), atol=1e-9) or seed == 0
    assert abs(q.w - np.cos(angle / 2)) < 1e-9


def test_frames_are_sent_as_the_type_that_geometry2_defines():
    """Frames from here and from a ROS 2 installation are of the same type on the wire."""
    built = json.loads(Path(sys.prefix, "share/tf2_msgs/msg/TFMessage.json").read_text())
    genuine = get_typestore(Stores.LATEST).hash_rihs01("tf2_msgs/msg/TFMessage")
    assert built["type_hashes"][0]["hash_string"] == genuine
