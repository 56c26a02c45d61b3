"""Virtual robots on the topics of real ones, over DDS."""

import os
import time
import uuid
from collections import deque
from dataclasses import replace

import numpy as np
import rclpy
from kairos_ros.msg import ActionChunk, RobotStatus
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from bench.support.exchange import Images, Received
from kairos_ros.core.exchange import Observation, Request
from kairos_ros.lab.live_replay.topics import ReplayTopics
from kairos_ros.nodes.robot.messages import Identity, request_message
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.telemetry.answer import answer_of


class RosExchange:
    """`poll` takes answers straight from their readers, which costs next to nothing however many
    robots there are; `wait` runs an executor as a robot node does."""

    def __init__(self, spec: RobotSpec) -> None:
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
        self._spec = spec
        node = rclpy.create_node(f"virtual_robots_{os.getpid()}")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        self._topics = ReplayTopics(node, self._on_chunk)
        self._who: dict[str, Identity] = {}
        self._arrived: deque[Received] = deque()

    def open(self, robot: str) -> str:
        who = self._who[robot] = Identity(robot, uuid.uuid4().hex, self._spec)
        self._topics.open(who)
        return who.session

    def ready(self, robot: str) -> bool:
        if not self._topics.ready(robot):
            return False
        self._topics.tell(robot, RobotStatus.RUNNING)
        return True

    def send(self, robot: str, request: Request, state: np.ndarray, images: Images) -> None:
        sent = replace(request, observation=Observation(state, images))
        self._topics.send(request_message(self._who[robot], sent))

    def poll(self) -> list[Received]:
        return [Received(answer_of(message), at) for message, at in self._topics.take()]

    def wait(self, timeout_s: float) -> list[Received]:
        self._topics.stay_alive()
        until = time.monotonic() + timeout_s
        while not self._arrived and (left := until - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)
        received = list(self._arrived)
        self._arrived.clear()
        return received

    def close(self, robot: str) -> None:
        self._topics.close(robot)

    def _on_chunk(self, message: ActionChunk) -> None:
        self._arrived.append(Received(answer_of(message), time.monotonic_ns()))
