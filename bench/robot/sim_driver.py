"""What a simulated arm's driver costs, and how steady it is: `python -m bench sim_driver`.

Each driver runs alone in a process of its own, with a subscriber beside it, which sends a
trajectory of one point 30 times a second, as a robot node does. Gaps are those between stamps of
joint states. Pictures are those of two cameras, rendered and heard as JPEG.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rich.console import Console
from rich.table import Table
from sensor_msgs.msg import CompressedImage, JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from bench.support.process_cost import cpu_s, memory_mb
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.host.domain import claim_domain
from kairos_ros.lab.driver_node.messages import seconds
from kairos_ros.nodes import qos
from kairos_ros.robot.description.arm import ARMS, ArmDescription, arm_called

COMMAND_HZ = 30.0
SWING_RAD = 0.2


def measure(name: str, rate_hz: float, cameras: bool, for_s: float) -> list[str]:
    """A row of the table."""
    arm = arm_called(name)
    parameters: dict[str, Any] = {"arm": name, "rate_hz": rate_hz}
    if cameras:
        parameters["cameras"] = list(arm.views)[:2]
    spec = ProcessSpec("sim_driver_node", "driver", namespace=name, parameters=parameters)
    stamps: list[float] = []
    pictures: list[CompressedImage] = []
    with tempfile.TemporaryDirectory() as logs, Fleet([spec], Path(logs)) as fleet:
        rclpy.init()
        node = rclpy.create_node("listener")
        node.create_subscription(
            JointState, f"/{name}/joint_states", lambda m: stamps.append(seconds(m.header.stamp)),
            qos.EVENTS,
        )  # fmt: skip
        for camera in parameters.get("cameras", ()):
            topic = f"/{name}/camera/{camera}/compressed"
            node.create_subscription(CompressedImage, topic, pictures.append, qos.TELEMETRY)
        where = f"/{name}/joint_trajectory_controller/joint_trajectory"
        commands = node.create_publisher(JointTrajectory, where, qos.EXCHANGE)
        node.create_timer(1.0 / COMMAND_HZ, lambda: commands.publish(_swing(arm)))
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        _spin(executor, 60.0, lambda: len(stamps) > 2 * rate_hz)
        pids = [process.pid for process in fleet.processes.values()]
        stamps.clear()
        pictures.clear()
        used, began = cpu_s(pids), time.monotonic()
        _spin(executor, for_s, lambda: False)
        share = (cpu_s(pids) - used) / (time.monotonic() - began)
        memory = memory_mb(pids)
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown()
    gaps_ms = 1000.0 * np.diff(stamps)
    return [
        name,
        f"{rate_hz:g}",
        f"{1000.0 / gaps_ms.mean():.1f}",
        f"{np.percentile(gaps_ms, 50):.1f} / {np.percentile(gaps_ms, 99):.1f}",
        f"{len(pictures) / for_s:.1f}" if cameras else "none",
        f"{100 * share:.0f}",
        f"{memory:.0f}",
    ]


def _swing(arm: ArmDescription) -> JointTrajectory:
    positions = list(arm.home)
    positions[0] += SWING_RAD * np.sin(2 * np.pi * 0.5 * time.monotonic())
    point = JointTrajectoryPoint(positions=positions)
    point.time_from_start.nanosec = 100_000_000
    return JointTrajectory(joint_names=list(arm.joints), points=[point])


def _spin(executor: SingleThreadedExecutor, most_s: float, enough: Callable[[], bool]) -> None:
    end = time.monotonic() + most_s
    while time.monotonic() < end and not enough():
        executor.spin_once(timeout_sec=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement [10]")
    parser.add_argument("--arms", default=",".join(ARMS), help=f"which arms [{','.join(ARMS)}]")
    arguments = parser.parse_args()
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    os.environ["ROS_DOMAIN_ID"] = str(claim_domain())
    table = Table(
        "arm", "asked Hz", "joint states Hz", "gap ms p50 / p99", "pictures/s", "% of a core", "MB",
        title=f"Simulated drivers, {arguments.seconds:g} s each, load {os.getloadavg()[0]:.1f}",
    )  # fmt: skip
    for name in arguments.arms.split(","):
        for rate_hz, cameras in ((100.0, False), (100.0, True), (250.0, False), (500.0, False)):
            table.add_row(*measure(name, rate_hz, cameras, arguments.seconds))
            print(f"{name} at {rate_hz:g} Hz{' with cameras' if cameras else ''}: done", flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
