"""Virtual robots in front of LeRobot's PolicyServer, speaking RobotClient's protocol.

That protocol is gRPC with pickled objects, which is why this file unpickles; it only ever talks to
servers that the benchmark itself started on this machine.
"""

import pickle
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from lerobot.async_inference.helpers import RemotePolicyConfig, TimedObservation
from lerobot.transport import services_pb2, services_pb2_grpc
from lerobot.transport.utils import grpc_channel_options, send_bytes_in_chunks
from lerobot.utils.feature_utils import hw_to_dataset_features

from bench.support.exchange import Images, Received
from kairos_ros.core.exchange import Actions, Answer, Request, RequestId
from kairos_ros.robot.adapter import RobotSpec

Sent = tuple[str, str, int, int]
"""Session, task, round and attempt of a request, by its LeRobot timestep."""


@dataclass(slots=True)
class _Robot:
    stub: Any
    channel: grpc.Channel
    session: str
    sent: dict[int, Sent] = field(default_factory=dict)
    timestep: int = 0
    open: bool = True


class LeRobotExchange:
    """One PolicyServer per robot, as it is meant to be used.

    Like RobotClient, a thread per robot always has a GetActions call waiting at the server.
    `background` sends observations from a thread per robot, so that many robots can share one
    control thread; RobotClient itself sends them from its control loop.
    """

    def __init__(
        self,
        spec: RobotSpec,
        policy: Path,
        policy_type: str,
        actions_per_chunk: int,
        ports: Mapping[str, int],
        background: bool,
    ) -> None:
        hardware: dict[str, Any] = {f"joint_{i}": float for i in range(spec.state_dim)}
        hardware |= {key.rpartition(".")[2]: (*size, 3) for key, size in spec.images.items()}
        features = hw_to_dataset_features(hardware, "observation", use_video=False)
        self._setup = pickle.dumps(
            RemotePolicyConfig(policy_type, str(policy), features, actions_per_chunk)
        )
        self._joints = [name for name, kind in hardware.items() if kind is float]
        self._ports = ports
        self._robots: dict[str, _Robot] = {}
        self._arrived: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._senders = (
            {robot: ThreadPoolExecutor(max_workers=1) for robot in ports} if background else {}
        )

    def open(self, robot: str) -> str:
        """Connects; the first time, the server loads its policy now."""
        known = self._robots.get(robot)
        if known is None:
            channel = grpc.insecure_channel(
                f"127.0.0.1:{self._ports[robot]}", grpc_channel_options()
            )
            known = self._robots[robot] = _Robot(
                services_pb2_grpc.AsyncInferenceStub(channel), channel, session="1"
            )
            known.stub.Ready(services_pb2.Empty())
            known.stub.SendPolicyInstructions(services_pb2.PolicySetup(data=self._setup))
            threading.Thread(target=self._receive, args=(robot, known), daemon=True).start()
        known.session = str(int(known.session) + 1)
        return known.session

    def ready(self, robot: str) -> bool:
        return True

    def send(self, robot: str, request: Request, state: np.ndarray, images: Images) -> None:
        connection = self._robots[robot]
        connection.timestep += 1
        connection.sent[connection.timestep] = (
            connection.session,
            request.id.task,
            request.id.round,
            request.id.attempt,
        )
        raw: dict[str, Any] = dict(zip(self._joints, state.tolist(), strict=True))
        raw |= {key.rpartition(".")[2]: pixels for key, pixels in images.items()}
        raw["task"] = request.instruction
        observation = TimedObservation(
            timestamp=time.time(), timestep=connection.timestep, observation=raw, must_go=True
        )
        if robot in self._senders:
            self._senders[robot].submit(_send, connection.stub, observation)
        else:
            _send(connection.stub, observation)

    def poll(self) -> list[Received]:
        received = []
        while not self._arrived.empty():
            received.append(self._arrived.get())
        return received

    def wait(self, timeout_s: float) -> list[Received]:
        try:
            return [self._arrived.get(timeout=timeout_s)]
        except queue.Empty:
            return []

    def close(self, robot: str) -> None:
        """Keeps the connection and the loaded policy for the next `open`."""

    def _receive(self, robot: str, connection: _Robot) -> None:
        while connection.open:
            chunk = connection.stub.GetActions(services_pb2.Empty())
            if not chunk.data:
                continue
            timed = pickle.loads(chunk.data)  # from a server of our own, see above
            actions = np.stack([action.get_action().numpy() for action in timed])
            sent = connection.sent.pop(timed[0].get_timestep())
            body = Actions(actions, np.ones(len(actions), np.float32))
            answer = Answer(RequestId(robot, *sent), body)
            self._arrived.put(Received(answer, time.monotonic_ns()))


def _send(stub: Any, observation: TimedObservation) -> None:
    data = pickle.dumps(observation)
    chunks = send_bytes_in_chunks(data, services_pb2.Observation, "", silent=True)
    stub.SendObservations(chunks)
