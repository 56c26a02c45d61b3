"""What the view hears: topics that are looked at once per drawing, and only while somebody watches.

Nothing here waits for a message: the newest ones are taken when the next picture is drawn, however
many came meanwhile (see `recorder_topics`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TransformStamped
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.exceptions import InvalidTopicNameException
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription
from rclpy.validate_full_topic_name import validate_full_topic_name
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage

from kairos_ros.msg import (
    ActionChunk,
    ChunkRequest,
    ChunkUpdates,
    ExecutionInfo,
    FleetState,
    PipelineEvent,
    RobotStatus,
    SafetyVerdict,
)
from kairos_ros.nodes import qos
from kairos_ros.nodes.robot_watch import SILENT_S
from kairos_ros.viz.chunk_book import ChunkBook

MOST_PER_LOOK = 200
PICTURE_OLD_S = 3.0
"""Robots send pictures during tasks only: an older one does not show what is there now."""
JOINTS, CHUNKS, SAFETY, CAMERAS, SERVING = "joints", "chunks", "safety", "cameras", "serving"
"""What there is to hear, by what it is for."""


@dataclass(slots=True)
class Heard:
    """The newest of one robot, and when it came (on this host's monotonic clock)."""

    status: RobotStatus
    heard_ns: int
    joint_names: tuple[str, ...] = ()
    joints: np.ndarray = field(default_factory=lambda: np.zeros(0))
    execution: ExecutionInfo = field(default_factory=ExecutionInfo)
    execution_ns: int = 0
    book: ChunkBook = field(default_factory=ChunkBook)
    verdict: SafetyVerdict | None = None
    verdict_ns: int = 0
    event: PipelineEvent | None = None
    event_ns: int = 0
    mode: str = ""
    """Of its state machine: what its last transition led to, or its diagnostics say since."""
    description: str = ""
    pictures: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Camera -> when its newest picture came, and that JPEG."""

    def picture(self, camera: str, now_ns: int) -> bytes:
        """Empty where none came lately."""
        heard_ns, jpeg = self.pictures.get(camera, (0, b""))
        return jpeg if now_ns - heard_ns <= PICTURE_OLD_S * 1e9 else b""


@dataclass(frozen=True, slots=True)
class Source:
    """One topic of a robot."""

    purpose: str
    topic: str
    kind: type
    qos: QoSProfile
    hear: Callable[[Heard, Any, int], None]


class Ears:
    """Knows the robots of the fleet, and what is heard of them.

    node: must not be in an executor, which would take the messages away.
    sources: the topics of a robot that an entry of parameter `arms` names.
    """

    def __init__(self, node: Node, sources: Callable[[str], Iterable[Source]]) -> None:
        self.robots: dict[str, Heard] = {}
        self.fleet: FleetState | None = None
        self.fleet_ns = 0
        self.placed: set[str] = set()
        """Static frames that others have placed."""
        self._node = node
        self._more = sources
        self._status = self._open(RobotStatus, "/kairos/robot_status", qos.ROSTER)
        self._tf = self._open(TFMessage, "/tf_static", qos.ROSTER)
        self._of_fleet: dict[str, Subscription] = {}
        self._of_robots: dict[str, dict[str, tuple[Source, Subscription]]] = {}

    def listen(self, purposes: frozenset[str], own: Sequence[TransformStamped]) -> None:
        """Opens what `purposes` need, closes the rest, takes what has come.

        own: static frames that this node has published, and hears, too.
        """
        now_ns = time.monotonic_ns()
        self._hear_statuses(now_ns)
        for message in _taken(self._tf):
            self.placed |= {one.child_frame_id for one in message.transforms if one not in own}
        self._hear_fleet(now_ns, purposes)
        for robot in list(self.robots):
            self._hear_robot(robot, now_ns, purposes)

    def _hear_statuses(self, now_ns: int) -> None:
        for message in _taken(self._status):
            if message.state == RobotStatus.LEAVING:
                self._forget(message.robot)
            elif (known := self.robots.get(message.robot)) is None:
                if _usable(message.robot):
                    self.robots[message.robot] = Heard(message, now_ns)
            else:
                known.status, known.heard_ns = message, now_ns
        for robot, heard in list(self.robots.items()):
            if now_ns - heard.heard_ns > SILENT_S * 1e9:
                self._forget(robot)

    def _forget(self, robot: str) -> None:
        self.robots.pop(robot, None)
        for _, subscription in self._of_robots.pop(robot, {}).values():
            self._node.destroy_subscription(subscription)

    def _hear_fleet(self, now_ns: int, purposes: frozenset[str]) -> None:
        wanted: dict[str, tuple[type, QoSProfile]] = {}
        if SERVING in purposes:
            wanted["/kairos/fleet_state"] = FleetState, qos.TELEMETRY
        if CHUNKS in purposes:
            wanted["/kairos/chunk_updates"] = ChunkUpdates, qos.EVENTS
        if SAFETY in purposes:  # EVENTS: between two looks many nodes report
            wanted["/diagnostics"] = DiagnosticArray, qos.EVENTS
        for topic in self._of_fleet.keys() - wanted.keys():
            self._node.destroy_subscription(self._of_fleet.pop(topic))
        for topic in wanted.keys() - self._of_fleet.keys():
            self._of_fleet[topic] = self._open(wanted[topic][0], topic, wanted[topic][1])
        for subscription in self._of_fleet.values():
            for message in _taken(subscription):
                if isinstance(message, FleetState):
                    self.fleet, self.fleet_ns = message, now_ns
                elif isinstance(message, DiagnosticArray):
                    self._hear_modes(message)
                elif message.robot in self.robots:
                    _hear_whole(self.robots[message.robot], message)

    def _hear_modes(self, message: DiagnosticArray) -> None:
        """A mode may be older than our first look, and then no transition told it."""
        for status in message.status:
            heard = self.robots.get(status.hardware_id)
            if heard is not None and status.name == f"kairos: {status.hardware_id}":
                heard.mode = next((one.value for one in status.values if one.key == "mode"), "")

    def _hear_robot(self, robot: str, now_ns: int, purposes: frozenset[str]) -> None:
        heard = self.robots[robot]
        if SAFETY not in purposes:  # who looks next must not see this as news
            heard.verdict, heard.event, heard.mode = None, None, ""
        if CAMERAS not in purposes:
            heard.pictures.clear()
        sources = {
            one.topic: one
            for one in (*robot_sources(robot, heard.status.image_keys), *self._more(robot))
            if one.purpose in purposes
        }
        opened = self._of_robots.setdefault(robot, {})
        for topic in opened.keys() - sources.keys():
            self._node.destroy_subscription(opened.pop(topic)[1])
        for topic in sources.keys() - opened.keys():
            if _usable(topic.removeprefix("/")):
                source = sources[topic]
                opened[topic] = source, self._open(source.kind, topic, source.qos)
        for source, subscription in opened.values():
            for message in _taken(subscription):
                source.hear(heard, message, now_ns)

    def _open(self, kind: type, topic: str, profile: QoSProfile) -> Subscription:
        return self._node.create_subscription(
            kind,
            topic,
            _ignore,
            profile,
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
        )


def robot_sources(robot: str, cameras: Iterable[str]) -> Iterator[Source]:
    """The topics that every robot node has."""

    def of(purpose: str, name: str, kind: type, profile: QoSProfile, hear: Any) -> Source:
        return Source(purpose, f"/{robot}/{name}", kind, profile, hear)

    yield of(JOINTS, "joint_states", JointState, qos.TELEMETRY, hear_joints)
    yield of(CHUNKS, "chunk_request", ChunkRequest, qos.EXCHANGE, _hear_request)
    yield of(CHUNKS, "action_chunk", ActionChunk, qos.EXCHANGE, _hear_chunk)
    yield of(CHUNKS, "execution_info", ExecutionInfo, qos.TELEMETRY, _hear_execution)
    yield of(SAFETY, "safety_verdict", SafetyVerdict, qos.TELEMETRY, _hear_verdict)
    yield of(SAFETY, "pipeline_events", PipelineEvent, qos.TELEMETRY, _hear_event)
    for camera in cameras:

        def hear(heard: Heard, message: CompressedImage, ns: int, camera: str = camera) -> None:
            heard.pictures[camera] = ns, bytes(message.data)

        yield of(CAMERAS, f"camera/{camera}/compressed", CompressedImage, qos.SENSOR, hear)


def hear_joints(heard: Heard, message: JointState, now_ns: int) -> None:
    if len(message.name) == len(message.position):
        heard.joint_names, heard.joints = tuple(message.name), np.array(message.position)


def hear_description(heard: Heard, message: String, now_ns: int) -> None:
    heard.description = message.data


def _hear_request(heard: Heard, message: ChunkRequest, now_ns: int) -> None:
    state = np.array(message.state, np.float32)
    if np.isfinite(state).all():
        heard.book.requested((message.session, message.task, message.round), message.attempt, state)


def _hear_chunk(heard: Heard, message: ActionChunk, now_ns: int) -> None:
    shape = message.horizon, message.action_dim
    if message.kind != ActionChunk.ACTIONS or shape[0] * shape[1] != len(message.actions):
        return
    heard.book.answered(
        (message.session, message.task, message.round),
        message.attempt,
        np.array(message.actions, np.float32).reshape(shape),
        np.array(message.confidence, np.float32),
        message.horizon_reason,
    )


def _hear_whole(heard: Heard, message: ChunkUpdates) -> None:
    shape = message.chunk_size, message.action_dim
    if shape[0] * shape[1] == len(message.chunk):
        heard.book.whole(
            (message.session, message.task, message.round),
            message.attempt,
            np.array(message.chunk, np.float32).reshape(shape),
        )


def _hear_execution(heard: Heard, message: ExecutionInfo, now_ns: int) -> None:
    heard.execution, heard.execution_ns = message, now_ns


def _hear_verdict(heard: Heard, message: SafetyVerdict, now_ns: int) -> None:
    heard.verdict, heard.verdict_ns = message, now_ns


def _hear_event(heard: Heard, message: PipelineEvent, now_ns: int) -> None:
    heard.event, heard.event_ns, heard.mode = message, now_ns, message.after


def _taken(subscription: Subscription) -> Iterator[Any]:
    for _ in range(MOST_PER_LOOK):
        came = subscription.handle.take_message(subscription.msg_type, False)
        if came is None:
            return
        yield came[0]


def _usable(name: str) -> bool:
    try:
        validate_full_topic_name(f"/{name}")
    except InvalidTopicNameException:
        return False
    return True


def _ignore(message: Any) -> None:
    """Never called: messages are taken, not delivered."""
