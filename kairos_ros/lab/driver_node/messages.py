"""Messages of a simulated arm's driver: joints, frames, pictures, targets."""

from collections.abc import Sequence

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import (
    Point,
    Pose,
    PoseStamped,
    Quaternion,
    Transform,
    TransformStamped,
    Vector3,
)
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Header
from trajectory_msgs.msg import JointTrajectory

from kairos_ros.lab.world.trajectory import Point as TrajectoryPoint
from kairos_ros.robot.description.arm import JointReading


def joint_state(stamp: Time, joints: Sequence[str], reading: JointReading) -> JointState:
    return JointState(
        header=Header(stamp=stamp),
        name=list(joints),
        position=reading.position.tolist(),
        velocity=reading.velocity.tolist(),
        effort=reading.effort.tolist(),
    )


def transform(stamp: Time, parent: str, child: str, pose: np.ndarray) -> TransformStamped:
    """`pose` float64 [4, 4], the child's frame in the parent's."""
    x, y, z = pose[:3, 3].tolist()
    return TransformStamped(
        header=Header(stamp=stamp, frame_id=parent),
        child_frame_id=child,
        transform=Transform(translation=Vector3(x=x, y=y, z=z), rotation=quaternion(pose)),
    )


def quaternion(pose: np.ndarray) -> Quaternion:
    """Unit quaternion of the rotation in `pose` float64 [4, 4], its w not negative.

    From the largest of its four squared parts, so that no rotation loses digits (Shepperd).
    """
    r = pose[:3, :3]
    trace = np.trace(r)
    squares = np.array([trace, *np.diag(r)])
    largest = int(np.argmax(squares))
    if largest == 0:
        q = np.array([1 + trace, r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]])
    else:
        i = largest - 1
        j, k = (i + 1) % 3, (i + 2) % 3
        q = np.empty(4)
        q[0] = r[k, j] - r[j, k]
        q[1 + i] = 1 + r[i, i] - r[j, j] - r[k, k]
        q[1 + j] = r[j, i] + r[i, j]
        q[1 + k] = r[k, i] + r[i, k]
    w, x, y, z = (q / np.linalg.norm(q) * (1.0 if q[0] >= 0 else -1.0)).tolist()
    return Quaternion(w=w, x=x, y=y, z=z)


def target_pose(stamp: Time, frame: str, position: np.ndarray) -> PoseStamped:
    """`position` float64 [3] in m in `frame`; it has no direction."""
    x, y, z = position.tolist()
    return PoseStamped(
        header=Header(stamp=stamp, frame_id=frame),
        pose=Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(w=1.0)),
    )


def image(stamp: Time, frame: str, pixels: np.ndarray) -> Image:
    """`pixels` uint8 [height, width, 3], red first."""
    height, width, _ = pixels.shape
    return Image(
        header=Header(stamp=stamp, frame_id=frame),
        height=height,
        width=width,
        encoding="rgb8",
        step=3 * width,
        data=pixels.tobytes(),
    )


def compressed_image(stamp: Time, frame: str, jpeg: bytes) -> CompressedImage:
    return CompressedImage(header=Header(stamp=stamp, frame_id=frame), format="jpeg", data=jpeg)


def trajectory_points(message: JointTrajectory) -> list[TrajectoryPoint]:
    return [
        TrajectoryPoint(
            point.time_from_start.sec + point.time_from_start.nanosec / 1e9,
            point.positions,
            point.velocities,
        )
        for point in message.points
    ]


def seconds(stamp: Time) -> float:
    return float(stamp.sec + stamp.nanosec / 1e9)
