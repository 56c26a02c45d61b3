"""Virtual robots on the topics of real ones: the messages and QoS of the robot node, over DDS."""

import os
import time
import uuid
from collections import deque
from dataclasses import dataclass

import numpy as np
import rclpy
from kairos_ros.msg import ActionChunk, ChunkRequest, RobotStatus
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.publisher import Publisher
from rclpy.signals import SignalHandlerOptions
from rclpy.subscription import Subscription

from bench.exchange import Images, Received
from kairos_ros.nodes import qos
from kairos_ros.nodes.robot_messages import Identity, answer_from, request_message
from kairos_ros.nodes.robot_node import HEARTBEAT_PERIOD_S, STATUS_TOPIC
from kairos_ros.robot.adapter import Observation, RobotSpec
from kairos_ros.robot.exchange import Request


@dataclass(frozen=True, slots=True)
class _Robot:
    who: Identity
    status: Publisher
    requests: Publisher
    chunks: Subscription


class RosExchange:
    """`poll` takes answers straight from their readers, which costs next to nothing however many
    robots there are; `wait` runs an executor as a robot node does."""

    def __init__(self, spec: RobotSpec) -> None:
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        self._spec = spec
        self._node = rclpy.create_node(f"virtual_robots_{os.getpid()}")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._node)
        self._robots: dict[str, _Robot] = {}
        self._arrived: deque[Received] = deque()
        self._heartbeat_s = 0.0

    def open(self, robot: str) -> str:
        create = self._node.create_publisher
        opened = self._robots[robot] = _Robot(
            Identity(robot, uuid.uuid4().hex, self._spec),
            create(RobotStatus, STATUS_TOPIC, qos.ANNOUNCEMENT),
            create(ChunkRequest, f"/{robot}/chunk_request", qos.EXCHANGE),
            self._node.create_subscription(
                ActionChunk, f"/{robot}/action_chunk", self._on_chunk, qos.EXCHANGE
            ),
        )
        self._announce(opened, RobotStatus.IDLE)
        return opened.who.session

    def ready(self, robot: str) -> bool:
        opened = self._robots[robot]
        there = opened.requests.get_subscription_count() and opened.chunks.get_publisher_count()
        return bool(there)

    def send(self, robot: str, request: Request, state: np.ndarray, images: Images) -> None:
        sender = self._robots[robot]
        observation = Observation(state, images)
        sender.requests.publish(request_message(sender.who, request, observation, 0, 0.0))

    def poll(self) -> list[Received]:
        self._stay_alive()
        to_monotonic = time.monotonic_ns() - time.time_ns()
        received = []
        for robot in self._robots.values():
            with robot.chunks.handle:
                while taken := robot.chunks.handle.take_message(ActionChunk, False):
                    message, info = taken
                    at = info["received_timestamp"] + to_monotonic
                    received.append(Received(answer_from(message), at))
        return received

    def wait(self, timeout_s: float) -> list[Received]:
        self._stay_alive()
        until = time.monotonic() + timeout_s
        while not self._arrived and (left := until - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)
        received = list(self._arrived)
        self._arrived.clear()
        return received

    def close(self, robot: str) -> None:
        closing = self._robots.pop(robot)
        self._announce(closing, RobotStatus.LEAVING)
        closing.status.wait_for_all_acked(Duration(seconds=1))
        self._node.destroy_subscription(closing.chunks)
        self._node.destroy_publisher(closing.requests)
        self._node.destroy_publisher(closing.status)

    def _on_chunk(self, message: ActionChunk) -> None:
        self._arrived.append(Received(answer_from(message), time.monotonic_ns()))

    def _stay_alive(self) -> None:
        if time.monotonic() - self._heartbeat_s > HEARTBEAT_PERIOD_S:
            self._heartbeat_s = time.monotonic()
            for robot in self._robots.values():
                self._announce(robot, RobotStatus.RUNNING)

    @staticmethod
    def _announce(robot: _Robot, state: int) -> None:
        who = robot.who
        robot.status.publish(RobotStatus(robot=who.robot, session=who.session, state=state))
