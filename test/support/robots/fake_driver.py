"""A driver that is nothing but its topics: joints that are where they are told to be, at once."""

import time
from collections import Counter

import numpy as np
import rclpy
from control_msgs.action import FollowJointTrajectory, GripperCommand
from geometry_msgs.msg import PointStamped
from light_node import LightNode
from rclpy.action import ActionServer, GoalResponse
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, Float64MultiArray
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory
from wire import Spinner, in_executor

from kairos_ros.nodes import qos
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg

RATE_HZ = 100.0
CAMERA_RATE_HZ = 20.0


class FakeDriver:
    """Publishes joint states and two cameras in `namespace`; every fault is an attribute."""

    def __init__(
        self,
        context: rclpy.Context,
        namespace: str,
        joints: dict[str, float],
        *,
        state_type: type = JointState,
        command_qos: QoSProfile = qos.EXCHANGE,
        actions: bool = False,
    ) -> None:
        self.joints = dict(joints)
        self.targets = dict(joints)
        """Of the controllers, also while the torque is off."""
        self.torque = True
        self.silent = self.stamp_frozen = self.camera_silent = self.pixels_frozen = False
        self.target_silent = False
        self.target_x: float | None = None
        """Told in the place of the number of tasks."""
        self.factor = 1.0
        """Between the joints and what is told of them."""
        self.commands: list[dict[str, float]] = []
        self.torques: list[bool] = []
        self.done = False
        self._pictures = self._tasks = 0
        self.node = LightNode("driver", context, namespace)
        make = self.node.create_publisher
        self._states = make(state_type, "joint_states", qos.EVENTS)
        self._raw = make(Image, "camera/front/image_raw", qos.SENSOR)
        self._compressed = make(CompressedImage, "camera/wrist/compressed", qos.SENSOR)
        self._target = make(PointStamped, "target", qos.TELEMETRY)
        self._done = make(Bool, "task_done", qos.TELEMETRY)
        self.node.create_subscription(
            JointTrajectory,
            "joint_trajectory_controller/joint_trajectory",
            lambda m: self._move(m.joint_names, m.points[-1].positions),
            command_qos,
        )
        self._gripper = self.node.create_subscription(
            Float64MultiArray,
            "gripper_controller/commands",
            lambda m: self._move(["gripper"], m.data),
            command_qos,
        )
        self.rejects = False
        self.thinks_s = 0.0
        """Before it answers a goal."""
        self.goals = Counter()
        if actions:
            self._serve(
                FollowJointTrajectory, "joint_trajectory_controller/follow_joint_trajectory"
            )
            self._serve(GripperCommand, "gripper_controller/gripper_cmd")
        self.node.create_service(SetBool, "torque_enable", self._on_torque)
        self.node.create_service(Trigger, "new_task", self._on_new_task)
        self.node.create_timer(1 / RATE_HZ, self._tell_joints)
        self.node.create_timer(1 / CAMERA_RATE_HZ, self._tell_more)
        self._stamp = self.node.get_clock().now().to_msg()
        self._spinner = Spinner(self.node)
        self.executor = self._spinner.executor
        self.close = self._spinner.close

    def within(self, act) -> None:
        """Runs `act` in the driver's thread."""
        in_executor(self.executor, act)

    def stop_controller(self) -> None:
        """The gripper's, for good."""
        self.within(lambda: self.node.destroy_subscription(self._gripper))

    def _move(self, names, positions) -> None:
        self.commands.append(dict(zip(names, positions, strict=True)))
        self.targets |= self.commands[-1]
        if self.torque:
            self.joints |= self.commands[-1]

    def _serve(self, kind, name: str) -> None:
        ActionServer(
            self.node,
            kind,
            name,
            lambda handle: self._follow(handle, kind),
            goal_callback=self._on_goal,
        )

    def _on_goal(self, _):
        time.sleep(self.thinks_s)
        return GoalResponse.REJECT if self.rejects else GoalResponse.ACCEPT

    def _follow(self, handle, kind):
        self.goals[kind] += 1
        goal = handle.request
        if kind is GripperCommand:
            self._move(["gripper"], [goal.command.position])
        else:
            self._move(goal.trajectory.joint_names, goal.trajectory.points[-1].positions)
        handle.succeed()
        return kind.Result()

    def _tell_joints(self) -> None:
        if self.silent:
            return
        if not self.stamp_frozen:
            self._stamp = self.node.get_clock().now().to_msg()
        if self._states.msg_type is not JointState:
            self._states.publish(self._states.msg_type())
            return
        message = JointState(
            name=list(self.joints), position=[self.factor * at for at in self.joints.values()]
        )
        message.header.stamp = self._stamp
        self._states.publish(message)

    def _tell_more(self) -> None:
        stamp = self.node.get_clock().now().to_msg()
        target = PointStamped()
        target.header.stamp = stamp
        target.point.x = float(self._tasks) if self.target_x is None else self.target_x
        if not self.target_silent:
            self._target.publish(target)
        self._done.publish(Bool(data=self.done))
        if self.camera_silent:
            return
        self._pictures += not self.pixels_frozen
        frame = np.full((48, 64, 3), self._pictures % 250, np.uint8)
        frame[..., 2] = 255
        raw = Image(height=48, width=64, encoding="bgr8", step=192, data=frame.tobytes())
        shown = CompressedImage(format="jpeg", data=jpeg(frame, (48, 64)))
        raw.header.stamp = shown.header.stamp = stamp
        self._raw.publish(raw)
        self._compressed.publish(shown)

    def _on_torque(self, request, answer):
        self.torques.append(request.data)
        if request.data and not self.torque:
            self.joints |= self.targets
        self.torque = request.data
        answer.success = True
        return answer

    def _on_new_task(self, _, answer):
        self._tasks, self.done, answer.success = self._tasks + 1, False, True
        return answer
