"""What drivers tell and are told, as a contract says: messages to and from plain data."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from geometry_msgs.msg import PointStamped, PoseStamped
from rclpy.duration import Duration
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from kairos_ros.robot.adapters.contract.contract import Command, ContractArm, ContractCamera, Extra
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg
from kairos_ros.robot.body_error import BodyError
from kairos_ros.robot.cameras.picture import as_jpeg, pixels


def joints_from(arm: ContractArm, data: bytes) -> tuple[tuple[str, ...], np.ndarray]:
    """Names, and float64 positions in rad or m."""
    message = deserialize_message(data, JointState)
    values = np.array(message.position, np.float64)
    names = tuple(message.name[: len(values)])
    if arm.joint_states.unit == "degrees":
        turns = {joint.name for joint in arm.joints if joint.kind == "revolute"}
        values = np.array(
            [np.radians(v) if n in turns else v for n, v in zip(names, values, strict=False)]
        )
    return names, values


def entries_from(extra: Extra, data: bytes) -> np.ndarray:
    """float64 [features]. Raises BodyError for another count, or NaN."""
    if extra.kind == "point":
        point = deserialize_message(data, PointStamped).point
        values = np.array([point.x, point.y, point.z])
    elif extra.kind == "pose":
        point = deserialize_message(data, PoseStamped).pose.position
        values = np.array([point.x, point.y, point.z])
    else:
        values = np.array(deserialize_message(data, Float64MultiArray).data)
    if len(values) != len(extra.features) or not np.isfinite(values).all():
        raise BodyError(
            "bad state", f"{extra.topic} told {values}, not {', '.join(extra.features)}"
        )
    return values


def picture_from(camera: ContractCamera, data: bytes) -> bytes:
    size = camera.height_px, camera.width_px
    if camera.kind == "compressed":
        return as_jpeg(bytes(deserialize_message(data, CompressedImage).data), size)
    image = deserialize_message(data, Image)
    frame = pixels(image.encoding, image.height, image.width, image.step, bytes(image.data))
    return jpeg(frame, size)


def in_driver_unit(
    arm: ContractArm, command: Command, positions: Mapping[str, float]
) -> list[float]:
    """Targets in a controller's order."""
    names = arm.joints_of(command)
    values = [positions[name] for name in names]
    if arm.joint_states.unit == "degrees":
        turns = {joint.name for joint in arm.joints if joint.kind == "revolute"}
        values = [math.degrees(v) if n in turns else v for n, v in zip(names, values, strict=True)]
    return values


def trajectory(arm: ContractArm, command: Command, values: list[float]) -> JointTrajectory:
    """One point, from now on."""
    reach = Duration(seconds=command.reach_s).to_msg()
    point = JointTrajectoryPoint(positions=values, time_from_start=reach)
    return JointTrajectory(joint_names=arm.joints_of(command), points=[point])


def trajectory_goal(arm: ContractArm, command: Command, values: list[float]) -> Any:
    from control_msgs.action import FollowJointTrajectory

    return FollowJointTrajectory.Goal(trajectory=trajectory(arm, command, values))


def gripper_goal(command: Command, position: float) -> Any:
    from control_msgs.action import GripperCommand

    goal = GripperCommand.Goal()
    goal.command.position, goal.command.max_effort = position, command.max_effort
    return goal
