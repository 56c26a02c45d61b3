"""A simulated arm as its driver shows it: standard topics only, nothing of kairos_ros on the wire.

It stands where ros2_control with joint_trajectory_controller, joint_state_broadcaster and
robot_state_publisher stands, or an SO-101's driver: docs/arms.md lists topics and services.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import PoseStamped, TransformStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger
from tf2_msgs.msg import TFMessage
from trajectory_msgs.msg import JointTrajectory

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.driver_node.cameras import ArmCameras, camera_frame
from kairos_ros.lab.driver_node.messages import (
    joint_state,
    seconds,
    target_pose,
    trajectory_points,
    transform,
)
from kairos_ros.lab.world.reach import Reach, done
from kairos_ros.lab.world.trajectory import RejectedError
from kairos_ros.nodes import qos
from kairos_ros.nodes.limited_node import LimitedNode
from kairos_ros.nodes.parameters import DOUBLES, STRINGS, NodeParameters, ParameterSpec
from kairos_ros.nodes.process import begin
from kairos_ros.nodes.timers import every
from kairos_ros.robot.adapters.sim.sim_cameras import render_off_screen
from kairos_ros.robot.cameras.cameras_text import parse_cameras
from kairos_ros.robot.description.arm import ARMS, arm_called, view_axes
from kairos_ros.robot.description.urdf import rotation_about

P = ParameterSpec
SIM_DRIVER_PARAMETERS = (
    P("arm", "so101", "Which arm.", choices=tuple(ARMS)),
    P("rate_hz", 100.0, "Joint states and control periods per second.", 10.0, 500.0),
    P("tf_rate_hz", 30.0, "Of /tf.", 0.1, 500.0),
    P("start", DOUBLES, "Joint positions at the start (rad, m), also beyond limits; empty: home."),
    P("world_pose", DOUBLES, "Where it stands: x, y, z (m) and yaw (rad) in frame world."),
    P("cameras", STRINGS, "Which of the arm's cameras, NAME or NAME:HEIGHTxWIDTH; empty: none."),
    P("camera_rate_hz", 5.0, "Pictures per second and camera, while somebody looks.", 0.1, 60.0),
    P("camera_height", 120, "In pixels, of cameras that name no size.", 16, 1080),
    P("camera_width", 160, "In pixels, of cameras that name no size.", 16, 1920),
    P("seed", 0, "Of the places of the balls.", 0, 2**31 - 1),
)

TARGET_RATE_HZ = 20.0
CATCH_UP_PERIODS = 5
"""A driver that is later than that skips time rather than to hurry."""


class SimDriver(LimitedNode):
    """Topics and services of one simulated arm, in its namespace.

    Raises ConfigError for a parameter or a namespace that is wrong.
    """

    def __init__(self) -> None:
        super().__init__("driver")
        values = NodeParameters(self, SIM_DRIVER_PARAMETERS)
        self._prefix = self.get_namespace().strip("/") + "/"
        if self._prefix == "/":
            raise ConfigError("a driver is named by its namespace; start with -r __ns:=/so101")
        if values["cameras"]:
            render_off_screen()
        # MuJoCo reads how to render when it is imported.
        from kairos_ros.lab.world.driver import SimulatedDriver

        self.arm = arm = arm_called(values["arm"])
        self._driver = SimulatedDriver(arm, values["start"], values["rate_hz"])
        self._world, self._controller = self._driver.world, self._driver.controller
        self._reach = Reach(arm, values["seed"])
        self._reach.lay_out_away(self._world)
        self._last = time.monotonic()
        self._skipped = 0
        self._rejected = 0
        self._silent = False
        size = values["camera_height"], values["camera_width"]
        images = parse_cameras(",".join(values["cameras"]), size)
        self._cameras = ArmCameras(self, arm, images, values["camera_rate_hz"])
        self._show()

        self._joints = self.create_publisher(JointState, "joint_states", qos.EVENTS)
        self._tf = self.create_publisher(TFMessage, "/tf", qos.EVENTS)
        self._targets = [
            self.create_publisher(PoseStamped, f"{hand.prefix}target_pose", qos.TELEMETRY)
            for hand in arm.hands
        ]
        self._done = self.create_publisher(Bool, "task_done", qos.TELEMETRY)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self._description = self.create_publisher(String, "robot_description", qos.ANNOUNCEMENT)
        self._description.publish(String(data=arm.description))
        self._static_tf = self.create_publisher(TFMessage, "/tf_static", qos.ANNOUNCEMENT)
        self._static_tf.publish(TFMessage(transforms=self._fixed(values["world_pose"])))
        self.create_subscription(
            JointTrajectory,
            "joint_trajectory_controller/joint_trajectory",
            self._on_trajectory,
            qos.EXCHANGE,
        )
        self.create_subscription(
            Float64MultiArray, "position_controller/commands", self._on_command, qos.EXCHANGE
        )
        self.create_service(Trigger, "new_task", self._on_new_task)
        self._switch("torque_enable", self._driver.torque)
        self._switch("fault/silent", self._set_silent)
        self._switch("fault/reject", lambda on: setattr(self._controller, "rejects_all", on))
        self._switch("fault/freeze_cameras", lambda on: setattr(self._cameras, "frozen", on))
        self._switch("fault/stop_cameras", lambda on: setattr(self._cameras, "stopped", on))
        every(self, self._driver.period_s, self._tick)
        every(self, 1.0 / values["tf_rate_hz"], self._publish_tf)
        every(self, 1.0 / TARGET_RATE_HZ, self._publish_task)
        every(self, 1.0, self._publish_diagnostics)
        self.get_logger().info(
            f"simulated {arm.name} is up: rate_hz={values['rate_hz']:g} "
            f"cameras={','.join(images) or 'none'}"
        )

    def close(self) -> None:
        """After the executor has stopped."""
        self._cameras.close()
        self.destroy_node()

    def _tick(self) -> None:
        behind = round((time.monotonic() - self._last) / self._driver.period_s)
        steps = min(behind, CATCH_UP_PERIODS)
        self._last += behind * self._driver.period_s
        self._skipped += behind - steps
        for _ in range(steps):
            self._driver.tick()
        if steps:
            self._show()
            if not self._silent:
                stamp = self.get_clock().now().to_msg()
                self._joints.publish(joint_state(stamp, self.arm.joints, self._world.read()))

    def _show(self) -> None:
        self._cameras.show(self._world.data.qpos, self._world.data.mocap_pos)

    def _on_trajectory(self, message: JointTrajectory) -> None:
        stamp = message.header.stamp
        begins_s = None
        if stamp.sec or stamp.nanosec:
            now = self.get_clock().now().to_msg()
            begins_s = self._driver.time_s + seconds(stamp) - seconds(now)
        points = trajectory_points(message)
        try:
            self._controller.follow(message.joint_names, points, self._driver.time_s, begins_s)
        except RejectedError as error:
            self.get_logger().error(f"trajectory rejected: {error}")

    def _on_command(self, message: Float64MultiArray) -> None:
        try:
            self._controller.go_to(message.data, self._driver.time_s)
        except RejectedError as error:
            self.get_logger().error(f"command rejected: {error}")

    def _on_new_task(self, _: Trigger.Request, answer: Trigger.Response) -> Trigger.Response:
        self._reach.lay_out_away(self._world)
        self._done.publish(Bool(data=False))  # of the new task
        self._publish_targets()
        places = [self._world.ball(hand) for hand in range(len(self.arm.hands))]
        answer.success = True
        answer.message = "; ".join(f"ball at {np.round(place, 3).tolist()} m" for place in places)
        return answer

    def _switch(self, name: str, set_it: Callable[[bool], None]) -> None:
        def serve(request: SetBool.Request, answer: SetBool.Response) -> SetBool.Response:
            set_it(request.data)
            self.get_logger().info(f"{name}: {'on' if request.data else 'off'}")
            answer.success = True
            return answer

        self.create_service(SetBool, name, serve)

    def _set_silent(self, on: bool) -> None:
        self._silent = on

    def _publish_tf(self) -> None:
        if self._silent:
            return
        stamp = self.get_clock().now().to_msg()
        values = dict(zip(self.arm.joints, self._world.read().position.tolist(), strict=True))
        urdf = self.arm.urdf
        self._tf.publish(
            TFMessage(
                transforms=[
                    self._transform(stamp, j.parent, j.child, j.transform(urdf.value(j, values)))
                    for j in urdf.joints.values()
                    if j.moves
                ]
            )
        )

    def _fixed(self, world_pose: list[float]) -> list[TransformStamped]:
        """Frames that never move against their parent: base, fixed joints, cameras."""
        if len(world_pose) not in (0, 4):
            raise ConfigError(f"world_pose is {world_pose}; give x, y, z (m) and yaw (rad)")
        x, y, z, yaw = world_pose or (0.0, 0.0, 0.0, 0.0)
        stamp = self.get_clock().now().to_msg()
        base = np.eye(4)
        base[:3, :3] = rotation_about(np.array([0.0, 0.0, 1.0]), yaw)
        base[:3, 3] = x, y, z
        frames = [transform(stamp, "world", self._prefix + self.arm.urdf.root, base)]
        frames += [
            self._transform(stamp, joint.parent, joint.child, joint.origin)
            for joint in self.arm.urdf.joints.values()
            if not joint.moves
        ]
        for name, view in self.arm.views.items():
            pose = np.eye(4)
            pose[:3, :3], pose[:3, 3] = view_axes(view), view.eye
            frames.append(
                transform(stamp, self._prefix + view.link, camera_frame(self, name), pose)
            )
        return frames

    def _transform(self, stamp: Any, parent: str, child: str, pose: np.ndarray) -> TransformStamped:
        return transform(stamp, self._prefix + parent, self._prefix + child, pose)

    def _publish_task(self) -> None:
        self._publish_targets()
        self._done.publish(Bool(data=done(self._world)))

    def _publish_targets(self) -> None:
        stamp = self.get_clock().now().to_msg()
        for hand, publisher in enumerate(self._targets):
            frame = self._prefix + self.arm.hands[hand].base
            publisher.publish(target_pose(stamp, frame, self._world.ball(hand)))

    def _publish_diagnostics(self) -> None:
        control = self._controller
        rejected, self._rejected = control.rejected - self._rejected, control.rejected
        values = {
            "accepted": control.accepted,
            "rejected": control.rejected,
            "last_rejection": control.last_rejection,
            "clipped_periods": control.clipped,
            "skipped_periods": self._skipped,
        }
        status = DiagnosticStatus(
            level=DiagnosticStatus.WARN if rejected else DiagnosticStatus.OK,
            name=f"{self._prefix}driver",
            message=control.last_rejection if rejected else "following commands",
            hardware_id=f"simulated {self.arm.name}",
            values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
        )
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)


def main() -> int:
    """Runs the node until SIGINT or SIGTERM. Exit code 0 then, 1 after an error."""
    node, executor, stop = begin("sim_driver_node", SimDriver)
    while not stop.is_set():
        executor.spin_once(timeout_sec=0.1)
    executor.shutdown()
    node.close()
    rclpy.shutdown()
    return 0
