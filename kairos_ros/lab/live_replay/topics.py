"""Many robots of one process on the topics of real ones: the messages and QoS of the robot node."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription

from kairos_ros.core.fleet_names import ROOT
from kairos_ros.msg import ActionChunk, ChunkRequest, RobotStatus
from kairos_ros.nodes import qos
from kairos_ros.nodes.robot.messages import Identity
from kairos_ros.nodes.robot.node import HEARTBEAT_PERIOD_S

GOODBYE_S = 1.0
"""Waited at most until everybody has heard that robots leave."""


@dataclass(slots=True)
class _Robot:
    who: Identity
    status: Publisher
    requests: Publisher
    chunks: Subscription
    state: int = RobotStatus.IDLE
    task: str = ""


class ReplayTopics:
    """One node for all robots. Answers are taken straight from their readers, without an executor,
    which costs next to nothing however many robots there are. Use it from one thread."""

    def __init__(
        self, node: Node, on_chunk: Callable[[ActionChunk], None] = lambda message: None
    ) -> None:
        """`on_chunk` is for those who spin `node` in an executor instead of calling `take`."""
        self._node = node
        self._on_chunk = on_chunk
        self._robots: dict[str, _Robot] = {}
        self._heartbeat_s = time.monotonic()

    def open(self, who: Identity) -> None:
        """Connects a robot and announces it, idle."""
        create = self._node.create_publisher
        self._robots[who.robot] = _Robot(
            who,
            create(RobotStatus, ROOT.common("robot_status"), qos.ANNOUNCEMENT),
            create(ChunkRequest, f"/{who.robot}/chunk_request", qos.EXCHANGE),
            self._node.create_subscription(
                ActionChunk, f"/{who.robot}/action_chunk", self._on_chunk, qos.EXCHANGE
            ),
        )
        self.tell(who.robot, RobotStatus.IDLE)

    def ready(self, robot: str) -> bool:
        """Whether a serving node has opened the robot's topics in both directions."""
        opened = self._robots[robot]
        there = opened.requests.get_subscription_count() and opened.chunks.get_publisher_count()
        return bool(there)

    def send(self, message: ChunkRequest) -> None:
        """To the topic of the robot that the request names."""
        self._robots[message.robot].requests.publish(message)

    def tell(self, robot: str, state: int, task: str = "") -> None:
        """What the robot does from now on; at the end of a task its next state ends it."""
        opened = self._robots[robot]
        opened.state, opened.task = state, task
        self._announce(opened)

    def take(self) -> Iterator[tuple[ActionChunk, int]]:
        """What has arrived, and when, in monotonic ns. Also sends heartbeats that are due."""
        self.stay_alive()
        to_monotonic = time.monotonic_ns() - time.time_ns()
        for robot in self._robots.values():
            with robot.chunks.handle:
                while taken := robot.chunks.handle.take_message(ActionChunk, False):
                    message, info = taken
                    yield message, info["received_timestamp"] + to_monotonic

    def close(self, *robots: str) -> None:
        """Says goodbye for them all, so that the names are free at once."""
        closing = [self._robots.pop(robot) for robot in robots]
        for robot in closing:
            robot.state, robot.task = RobotStatus.LEAVING, ""
            self._announce(robot)
        until_s = time.monotonic() + GOODBYE_S
        for robot in closing:
            left_s = max(0.0, until_s - time.monotonic())
            robot.status.wait_for_all_acked(Duration(seconds=left_s))
            self._node.destroy_subscription(robot.chunks)
            self._node.destroy_publisher(robot.requests)
            self._node.destroy_publisher(robot.status)

    def stay_alive(self) -> None:
        """Sends the heartbeats that are due."""
        if time.monotonic() - self._heartbeat_s > HEARTBEAT_PERIOD_S:
            self._heartbeat_s = time.monotonic()
            for robot in self._robots.values():
                self._announce(robot)

    @staticmethod
    def _announce(robot: _Robot) -> None:
        spec = robot.who.spec
        robot.status.publish(
            RobotStatus(
                robot=robot.who.robot,
                session=robot.who.session,
                state=robot.state,
                task=robot.task,
                control_rate_hz=spec.control_rate_hz,
                state_dim=spec.state_dim,
                action_dim=spec.action_dim,
                image_keys=list(spec.images),
                image_height_px=[height for height, _ in spec.images.values()],
                image_width_px=[width for _, width in spec.images.values()],
                request_image_keys=list(robot.who.interface.cameras),
            )
        )
