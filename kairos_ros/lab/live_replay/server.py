"""The serving node of a replay, as it tells of itself, and one question to see what it answers."""

import time
import uuid

import numpy as np
from rclpy.node import Node

from kairos_ros.core.errors import ConfigError, WireError
from kairos_ros.core.exchange import Actions, Observation, Refusal, Request, RequestId
from kairos_ros.core.wire_check import printable
from kairos_ros.lab.live_replay.process_messages import RecordedTask, Seen
from kairos_ros.lab.live_replay.topics import ReplayTopics
from kairos_ros.msg import ChunkRequest, FleetState
from kairos_ros.nodes.bounded import FLEET_BYTES, subscribe
from kairos_ros.nodes.clients.standalone_node import StandaloneNode
from kairos_ros.nodes.qos import TELEMETRY
from kairos_ros.nodes.robot.messages import Identity, request_message
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.telemetry.answer import answer_of

PROBE = "replay_probe"
PROBE_EVERY_S = 2.0
PROBE_WITHIN_S = 30.0


class ServerWatch:
    """Listens to /kairos/fleet_state. A context manager."""

    def __init__(self) -> None:
        self.state: FleetState | None = None
        """The newest one."""
        self.heard_s = time.monotonic()
        """When it came."""
        self._standalone = StandaloneNode("replay")
        subscribe(
            self._standalone.node,
            FleetState,
            "/kairos/fleet_state",
            self._on_state,
            TELEMETRY,
            most_bytes=FLEET_BYTES,
        )

    def __enter__(self) -> "ServerWatch":
        return self

    def __exit__(self, *_: object) -> None:
        self._standalone.close()

    def spin(self, for_s: float) -> None:
        self._standalone.spin(for_s)

    @property
    def active(self) -> bool:
        return self.state is not None and self.state.active

    @property
    def policy(self) -> str:
        """Id of the policy that is served; empty while it is not known."""
        engines = self.state.engines if self.state is not None else []
        return engines[0].policy if engines else ""

    def progress(self) -> str:
        if self.state is None:
            return "waiting for a serving node"
        if self.active:
            return "serving node ready"
        return ", ".join(f"engine {e.state}" for e in self.state.engines) or "starting"

    def counters(self) -> dict[str, int]:
        state = self.state or FleetState()
        return dict(zip(state.counter_names, state.counter_values, strict=False))

    def probe(self, task: RecordedTask, spec: RobotSpec) -> "Probe":
        """A robot that asks the first question of `task`, whatever comes back."""
        return Probe(self._standalone.beside(PROBE), task, spec)

    def _on_state(self, message: FleetState) -> None:
        self.state = message
        self.heard_s = time.monotonic()


class Probe:
    """Asks until there is an answer, so that what a server refuses is known before the start."""

    def __init__(self, node: Node, task: RecordedTask, spec: RobotSpec) -> None:
        """`node` is its own, and in no executor, which would take the answers away."""
        self._node = node
        self._topics = topics = ReplayTopics(node)
        self._task = task
        self._who = Identity(PROBE, uuid.uuid4().hex, spec)
        self._began_s = time.monotonic()
        self._asked_s: float | None = None
        self._attempt = 0
        topics.open(self._who)

    def answered(self) -> bool:
        """Whether the server would serve the traces. Call it until it does.

        Raises ConfigError when it refuses, or when it says nothing for long.
        """
        for message, _ in self._topics.take():
            try:
                answer = answer_of(message).body
            except WireError:
                continue  # the probe is sent again
            if isinstance(answer, Refusal) and not answer.retry_after_ns:
                raise ConfigError(
                    f"the serving node refuses what was recorded: "
                    f"{printable(answer.reason, 500)}; replay it "
                    f"with the policy of the traces, {self._task.trace.policy!r}"
                )
            if isinstance(answer, Actions):
                self._check(answer)
                return True
        now_s = time.monotonic()
        if now_s > self._began_s + PROBE_WITHIN_S:
            raise ConfigError(
                f"the serving node has not answered for {PROBE_WITHIN_S:.0f} s; is it in this ROS "
                "domain (ROS_DOMAIN_ID), and active?"
            )
        due = self._asked_s is None or now_s > self._asked_s + PROBE_EVERY_S
        if due and self._topics.ready(PROBE):
            self._asked_s = now_s
            self._topics.send(self._question())
            self._attempt += 1
        return False

    def leave(self) -> None:
        self._topics.close(PROBE)
        self._node.destroy_node()

    def _check(self, answer: Actions) -> None:
        trace = self._task.trace
        got = {"action_dim": answer.actions.shape[1], "chunk_size": answer.chunk_size}
        for name, value in got.items():
            if value != getattr(trace, name):
                raise ConfigError(
                    f"the serving node's policy {answer.policy!r} has {name} {value}, but the "
                    f"traces, of policy {trace.policy!r}, have {getattr(trace, name)}"
                )

    def _question(self) -> ChunkRequest:
        trace, horizon = self._task.trace, self._task.horizon
        first = trace.rounds[0]
        state = first.state
        if state is None:
            state = np.zeros(self._who.spec.state_dim, np.float32)
        seen = self._task.seen[0] if self._task.seen else Seen()
        request = Request(
            RequestId(PROBE, self._who.session, "probe", 1, self._attempt),
            instruction=trace.instruction,
            kind="probe",
            horizon_policy=horizon or "static:1",
            seed=trace.seed,
            observation=Observation(state, seen.images),
            earlier=seen.earlier,
        )
        return request_message(self._who, request)
