"""Gives one arm its tasks and overhears what its driver and its server are told meanwhile."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rclpy.action import ActionClient
from sensor_msgs.msg import JointState

from kairos_ros.action import ExecuteTask
from kairos_ros.core.errors import KairosError
from kairos_ros.msg import ActionChunk, ChunkRequest, FleetState
from kairos_ros.nodes.qos import EVENTS, EXCHANGE, TELEMETRY
from kairos_ros.nodes.side_node import SideNode


@dataclass(frozen=True, slots=True)
class SeenChunk:
    """One chunk, at the time of the observation that it was made from."""

    at_s: float
    actions: np.ndarray
    """float32 [horizon, action_dim]."""


@dataclass(slots=True)
class SeenTask:
    """One task, times since it was given."""

    positions: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """What the driver told: joint -> rad or m."""
    chunks: list[SeenChunk] = field(default_factory=list)
    result: ExecuteTask.Result | None = None


class ArmWitness:
    """A node in the calling thread; every wait has an end. A context manager."""

    def __init__(self, robot: str, driver: str, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted
        self._side = SideNode("arm_demo")
        self._node = self._side.node
        self._client = ActionClient(self._node, ExecuteTask, f"/{robot}/execute_task")
        self._active = False
        self._seen = SeenTask()
        self._began_s = 0.0
        self._asked: dict[tuple[str, int, int], float] = {}
        listen = self._node.create_subscription
        listen(JointState, f"/{driver}/joint_states", self._on_joints, TELEMETRY)
        listen(ChunkRequest, f"/{robot}/chunk_request", self._on_request, EVENTS)
        listen(ActionChunk, f"/{robot}/action_chunk", self._on_chunk, EXCHANGE)
        listen(FleetState, "/kairos/fleet_state", self._on_fleet, TELEMETRY)

    def __enter__(self) -> "ArmWitness":
        return self

    def __exit__(self, *_: object) -> None:
        self._side.close()

    def ready(self, dead: Callable[[], dict[str, int]], within_s: float) -> bool:
        """Waits for the server and the robot; False when interrupted. Raises KairosError."""

        def both() -> bool:
            if ended := dead():
                raise KairosError(f"{', '.join(ended)} ended by itself")
            return self._active and self._client.server_is_ready()

        if not self._spin_until(both, within_s) and not self._interrupted():
            raise KairosError(f"the arm was not ready within {within_s:g} s")
        return both()

    def do(self, within_s: float, **goal: Any) -> SeenTask | None:
        """One task; None when interrupted. Raises KairosError for a robot that does not answer."""
        self._seen, self._asked = SeenTask(), {}
        self._began_s = time.monotonic()
        accepted = self._client.send_goal_async(ExecuteTask.Goal(max_duration_s=within_s, **goal))
        if not self._spin_until(accepted.done, 15.0):
            return self._gave_up("did not answer the goal")
        handle = accepted.result()
        if not handle.accepted:
            raise KairosError("the robot did not accept the task")
        done = handle.get_result_async()
        if not self._spin_until(done.done, within_s + 30.0):
            handle.cancel_goal_async()
            self._spin_until(done.done, 3.0, even_if_interrupted=True)
            return self._gave_up("gave no result")
        self._seen.result = done.result().result
        return self._seen

    def _gave_up(self, what: str) -> None:
        if not self._interrupted():
            raise KairosError(f"the robot {what}")

    def _spin_until(
        self, done: Callable[[], bool], within_s: float, *, even_if_interrupted: bool = False
    ) -> bool:
        give_up = time.monotonic() + within_s
        while not done():
            if time.monotonic() > give_up or (self._interrupted() and not even_if_interrupted):
                return False
            self._side.spin(0.1)
        return True

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _on_joints(self, message: JointState) -> None:
        told = dict(zip(message.name, message.position, strict=False))
        self._seen.positions.append((self._now_s(), told))

    def _on_request(self, message: ChunkRequest) -> None:
        key = message.task, message.round, message.attempt
        self._asked[key] = self._now_s() - message.observed_ago_s

    def _on_chunk(self, message: ActionChunk) -> None:
        at_s = self._asked.get((message.task, message.round, message.attempt))
        if message.kind == ActionChunk.ACTIONS and at_s is not None:
            actions = np.asarray(message.actions, np.float32)
            self._seen.chunks.append(
                SeenChunk(at_s, actions.reshape(message.horizon, message.action_dim))
            )

    def _on_fleet(self, message: FleetState) -> None:
        self._active = message.active
