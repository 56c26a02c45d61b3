"""One robot's round trips while forged names announce themselves: `python -m bench forged_names`.

The serving node, the robot and the forger are processes of their own. Prints the round trips of the
robot before the forger begins, in the seconds after, and after it has gone.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rclpy
from kairos_ros.msg import ActionChunk, RobotStatus
from rclpy.qos import QoSDurabilityPolicy, QoSProfile

from bench.support.servers import Kairos, environment
from kairos_ros.core.exchange import Observation, Request, RequestId
from kairos_ros.lab.live_replay.topics import ReplayTopics
from kairos_ros.nodes.robot.messages import Identity, request_message
from kairos_ros.robot.adapter import RobotSpec

POLICY = "emulated:latency_ms=5,chunk=20,state=4,dim=4"
PAUSE_S = 0.02
PATIENCE_S = 30.0


def forge(names: int, seconds: float) -> None:
    """Announces so many robots, each about once a second."""
    rclpy.init()
    node = rclpy.create_node("forger")
    profile = QoSProfile(depth=names, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
    publisher = node.create_publisher(RobotStatus, "/kairos/robot_status", profile)
    while not publisher.get_subscription_count():
        time.sleep(0.05)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(names):
            publisher.publish(RobotStatus(robot=f"forged_{number}", session="x"))
            time.sleep(1.0 / names)  # all at once, DDS itself loses some
    node.destroy_node()
    rclpy.shutdown()


class Robot:
    """Asks for round after round, one at a time."""

    def __init__(self) -> None:
        rclpy.init()
        self._topics = ReplayTopics(rclpy.create_node("robot"))
        spec = RobotSpec(state_dim=4, action_dim=4, images={}, control_rate_hz=30.0)
        self._who = Identity("arm_1", uuid.uuid4().hex, spec)
        self._topics.open(self._who)
        self._round = 0

    def ask_for(self, seconds: float) -> list[float]:
        """Round trips in ms; one that was not answered counts as what was waited for it."""
        trips = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._round += 1
            began = time.monotonic()
            self._ask()
            while not self._answered() and time.monotonic() - began < PATIENCE_S:
                time.sleep(0.0005)
            trips.append(1e3 * (time.monotonic() - began))
            time.sleep(PAUSE_S)
        return trips

    def join(self) -> None:
        """Waits until it is served."""
        while not self._topics.ready("arm_1"):
            self._topics.stay_alive()
            time.sleep(0.05)
        time.sleep(1.0)

    def _ask(self) -> None:
        asked = Request(
            RequestId("arm_1", self._who.session, "1", self._round, 0),
            instruction="reach",
            kind="reach",
            horizon_policy="static:10",
            observation=Observation(np.zeros(4, np.float32)),
        )
        self._topics.send(request_message(self._who, asked))

    def _answered(self) -> bool:
        taken = [message for message, _ in self._topics.take()]
        return any(m.kind == ActionChunk.ACTIONS and m.round == self._round for m in taken)


def told(when: str, trips: Sequence[float]) -> None:
    print(
        f"{when:<28} {len(trips):5} rounds, p50 {statistics.median(trips):7.1f} ms, "
        f"p99 {np.percentile(trips, 99):7.1f} ms, longest {max(trips):7.1f} ms",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench forged_names", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--names", type=int, default=700, help="forged robots [700]")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase [10]")
    parser.add_argument("--forge", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.forge:
        forge(arguments.names, arguments.seconds)
        return 0
    env = environment()
    os.environ.update(env)
    with (
        tempfile.TemporaryDirectory() as folder,
        Kairos(Path(folder), env, policy=POLICY, stale_after_s=0.0),
    ):
        robot = Robot()
        robot.join()
        told("alone", robot.ask_for(arguments.seconds))
        forger = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.serving.forged_names", "--forge"),
                *("--names", str(arguments.names), "--seconds", str(arguments.seconds)),
            ],
        )
        told(f"{arguments.names} forged names", robot.ask_for(arguments.seconds + 2.0))
        forger.wait()
        told("after them", robot.ask_for(arguments.seconds))
        rclpy.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
