"""Records what one arm's driver and its server are told during a task."""

import time
from dataclasses import dataclass, field

import numpy as np
from sensor_msgs.msg import JointState

from kairos_ros.core.exchange import Actions
from kairos_ros.lab.testbed.testbed_client import TestbedClient
from kairos_ros.msg import ActionChunk, ChunkRequest
from kairos_ros.nodes.qos import EXCHANGE, TELEMETRY
from kairos_ros.telemetry.answer import answer_of


@dataclass(frozen=True, slots=True)
class RecordedChunk:
    """One chunk, at the time of the observation that it was made from."""

    at_s: float
    actions: np.ndarray
    """float32 [horizon, action_dim]."""


@dataclass(slots=True)
class ArmRecording:
    """One task, times since it was given."""

    positions: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """What the driver told: joint -> rad or m."""
    chunks: list[RecordedChunk] = field(default_factory=list)


class ArmRecorder:
    """Subscribes through the client, which its owner spins."""

    def __init__(self, client: TestbedClient, robot: str, driver: str) -> None:
        """robot, driver: namespaces of the arm's robot node and of its ROS 2 driver."""
        self.client, self.robot = client, robot
        self.begin()
        client.listen(f"/{driver}/joint_states", JointState, self._on_joints, TELEMETRY)
        client.listen(f"/{robot}/chunk_request", ChunkRequest, self._on_request)
        client.listen(f"/{robot}/action_chunk", ActionChunk, self._on_chunk, EXCHANGE)

    def begin(self) -> None:
        """A task is given now: starts an empty recording."""
        self.recording = ArmRecording()
        self._began_s = time.monotonic()
        self._observed_s: dict[tuple[str, int, int], float] = {}

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _on_joints(self, message: JointState) -> None:
        positions = dict(zip(message.name, message.position, strict=False))
        self.recording.positions.append((self._now_s(), positions))

    def _on_request(self, message: ChunkRequest) -> None:
        key = message.task, message.round, message.attempt
        self._observed_s[key] = self._now_s() - message.observed_ago_s

    def _on_chunk(self, message: ActionChunk) -> None:
        answer = answer_of(message)
        at_s = self._observed_s.get((answer.id.task, answer.id.round, answer.id.attempt))
        if isinstance(answer.body, Actions) and at_s is not None:
            self.recording.chunks.append(RecordedChunk(at_s, answer.body.actions))
