"""Topics that are looked at once per drawing, and only while somebody watches.

Nothing here waits for a message: the newest ones are taken when the next picture is drawn, however
many came meanwhile (as in the recorder).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TransformStamped
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage

from kairos_ros.core.errors import WireError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.wire_check import ROBOTS
from kairos_ros.msg import (
    ActionChunk,
    ChunkRequest,
    ChunkUpdates,
    ExecutionInfo,
    FleetState,
    PipelineEvent,
    PolicyState,
    RobotStatus,
    SafetyVerdict,
)
from kairos_ros.nodes import qos
from kairos_ros.nodes.announcements import Announcements
from kairos_ros.nodes.bounded import FLEET_BYTES, read
from kairos_ros.nodes.fleet_namespace import fleet_of
from kairos_ros.nodes.messages.telemetry import event_of
from kairos_ros.nodes.robot.watch import SILENT_S
from kairos_ros.telemetry.decode import robot_reported
from kairos_ros.telemetry.events import ChunkAnswered, ChunkComputed, ChunkRequested
from kairos_ros.telemetry.fleet_view import FleetView, RobotView
from kairos_ros.viz.chunk_paths import ChunkPaths

MOST_PER_LOOK = 200
OPENING_S = 0.03
"""Spent at most per look on opening topics: of hundreds of robots that come at once, some wait."""
PICTURE_OLD_S = 3.0
"""Robots send pictures during tasks only: an older one does not show what is there now."""
JOINTS, CHUNKS, SAFETY, CAMERAS, SERVING = "joints", "chunks", "safety", "cameras", "serving"
"""What there is to hear, by what it is for."""


@dataclass(slots=True)
class Drawn:
    """What only the drawing of a robot needs, as its topics said last."""

    joints: Mapping[str, float] = field(default_factory=dict)
    """Of a robot with a description, in rad or m by joint; in older bags, its policy's state."""
    state: Mapping[str, float] = field(default_factory=dict)
    """What its policy reads, in the policy's units."""
    paths: ChunkPaths = field(default_factory=ChunkPaths)
    description: str = ""
    pictures: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Camera -> when its newest picture came (monotonic, ns), and that JPEG."""

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
    read: Callable[[Drawn, Any, int], None] | None = None
    """Of what only the drawing needs; None: its messages are events."""


class Subscriptions:
    """The view of the fleet, and what its drawing needs beyond that.

    node: must not be in an executor, which would take the messages away.
    sources: the topics of a robot that an entry of parameter `arms` names. most: robots at a time.
    """

    def __init__(
        self, node: Node, sources: Callable[[str], Iterable[Source]], most: int = ROBOTS
    ) -> None:
        self.counters: Counter[str] = Counter()
        """Messages that were refused."""
        self.view = FleetView()
        self.drawn: dict[str, Drawn] = {}
        """By robot, the same as of `view`."""
        self.placed: set[str] = set()
        """Static frames that others have placed."""
        self._node, self._names = node, fleet_of(node)
        self._more = sources
        self._announcements = Announcements(node.get_logger(), self.counters, most)
        self._open_until_s = 0.0
        self._status = self._open(RobotStatus, self._names.common("robot_status"), qos.ROSTER)
        self._tf = self._open(TFMessage, "/tf_static", qos.ROSTER)
        self._of_fleet: dict[str, Subscription] = {}
        self._of_robots: dict[str, dict[str, tuple[Source, Subscription]]] = {}

    def look(self, purposes: frozenset[str], own: Sequence[TransformStamped]) -> None:
        """Opens what `purposes` need, closes the rest, takes what has come.

        own: static frames that this node has published, and receives, too.
        """
        now_ns = time.monotonic_ns()
        self._open_until_s = time.monotonic() + OPENING_S
        self._take_statuses(now_ns)
        for message in self._taken(self._tf):
            self.placed |= {one.child_frame_id for one in message.transforms if one not in own}
        self._take_fleet(now_ns, purposes)
        for robot in self.view.robots.values():
            self._take_robot(robot, now_ns, purposes)

    def _take_statuses(self, now_ns: int) -> None:
        for message in self._taken(self._status):
            if self._announcements.read(message, self.view.robots) is not None:
                self.view.take(robot_reported(message, "", now_ns / 1e9))
        for name, robot in list(self.view.robots.items()):
            status = robot.status
            if status is None or status.state is RobotState.LEAVING:
                del self.view.robots[name]
        self.view.forget(now_ns / 1e9 - SILENT_S)
        for name in self.drawn.keys() - self.view.robots.keys():
            del self.drawn[name]
            for _, subscription in self._of_robots.pop(name, {}).values():
                self._node.destroy_subscription(subscription)
        for name in self.view.robots.keys() - self.drawn.keys():
            self.drawn[name] = Drawn()

    def _take_fleet(self, now_ns: int, purposes: frozenset[str]) -> None:
        wanted: dict[str, tuple[type, QoSProfile]] = {}
        if SERVING in purposes:
            wanted[self._names.common("fleet_state")] = FleetState, qos.TELEMETRY
        if CHUNKS in purposes:
            wanted[self._names.common("chunk_updates")] = ChunkUpdates, qos.EVENTS
        if SAFETY in purposes:  # EVENTS: between two looks many nodes report
            wanted["/diagnostics"] = DiagnosticArray, qos.EVENTS
        for topic in self._of_fleet.keys() - wanted.keys():
            self._node.destroy_subscription(self._of_fleet.pop(topic))
        for topic in wanted.keys() - self._of_fleet.keys():
            self._of_fleet[topic] = self._open(wanted[topic][0], topic, wanted[topic][1])
        for topic, subscription in self._of_fleet.items():
            for message in self._taken(subscription):
                self._take(message, topic, now_ns)

    def _take(self, message: Any, topic: str, now_ns: int) -> None:
        """Of a message that is an event."""
        try:
            event = event_of(message, topic, now_ns / 1e9, self._names)
        except WireError:
            self.counters["refused_message"] += 1
            return
        match event:
            case ChunkRequested(key=key) if key.robot in self.drawn:
                if np.isfinite(event.state).all():
                    self.drawn[key.robot].paths.requested(_round(event), event.attempt, event.state)
            case ChunkAnswered(key=key, actions=actions) if key.robot in self.drawn:
                status = self.view.robots[key.robot].status
                # a robot drops the chunk of a server that it has not asked
                if actions is not None and status and status.server in ("", event.server):
                    self.drawn[key.robot].paths.answered(
                        _round(event),
                        event.attempt,
                        actions,
                        event.confidence,
                        event.horizon_reason,
                    )
            case ChunkComputed(key=key) if key.robot in self.drawn:
                self.drawn[key.robot].paths.whole(_round(event), event.attempt, event.chunk)
            case None:
                pass
            case _:
                self.view.take(event)

    def _take_robot(self, view: RobotView, now_ns: int, purposes: frozenset[str]) -> None:
        robot, drawn = view.name, self.drawn[view.name]
        cameras = view.status.cameras if view.status else ()
        if SAFETY not in purposes:  # who looks next must not see this as news
            view.verdict, view.transition, view.mode = None, None, ""
        if CAMERAS not in purposes:
            drawn.pictures.clear()
        sources = {
            one.topic: one
            for one in (*robot_sources(self._names, robot, cameras), *self._more(robot))
            if one.purpose in purposes
        }
        opened = self._of_robots.setdefault(robot, {})
        for topic in opened.keys() - sources.keys():
            self._node.destroy_subscription(opened.pop(topic)[1])
        for topic in sources.keys() - opened.keys():
            if time.monotonic() > self._open_until_s:
                break
            source = sources[topic]
            opened[topic] = source, self._open(source.kind, topic, source.qos)
        for source, subscription in opened.values():
            for message in self._taken(subscription):
                if source.read is None:
                    self._take(message, source.topic, now_ns)
                else:
                    source.read(drawn, message, now_ns)

    def _open(self, kind: type, topic: str, profile: QoSProfile) -> Subscription:
        return self._node.create_subscription(
            kind,
            topic,
            _ignore,
            profile,
            raw=True,
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
        )

    def _taken(self, subscription: Subscription) -> Iterator[Any]:
        for _ in range(MOST_PER_LOOK):
            came = subscription.handle.take_message(subscription.msg_type, True)
            if came is None:
                return
            try:
                yield read(came[0], subscription.msg_type, FLEET_BYTES)
            except WireError:
                self.counters["refused_message"] += 1


def robot_sources(names: FleetNames, robot: str, cameras: Iterable[str]) -> Iterator[Source]:
    """The topics that every robot node has."""

    def of(purpose: str, name: str, kind: type, profile: QoSProfile, read: Any = None) -> Source:
        return Source(purpose, names.robot(robot, name), kind, profile, read)

    yield of(JOINTS, "policy_state", PolicyState, qos.TELEMETRY, read_state)
    yield of(JOINTS, "joint_states", JointState, qos.TELEMETRY, read_joints)
    yield of(CHUNKS, "chunk_request", ChunkRequest, qos.EXCHANGE)
    yield of(CHUNKS, "action_chunk", ActionChunk, qos.EXCHANGE)
    yield of(CHUNKS, "execution_info", ExecutionInfo, qos.TELEMETRY)
    yield of(SAFETY, "safety_verdict", SafetyVerdict, qos.TELEMETRY)
    yield of(SAFETY, "pipeline_events", PipelineEvent, qos.TELEMETRY)
    for camera in cameras:

        def read(drawn: Drawn, message: CompressedImage, ns: int, camera: str = camera) -> None:
            drawn.pictures[camera] = ns, bytes(message.data)

        yield of(CAMERAS, f"camera/{camera}/compressed", CompressedImage, qos.SENSOR, read)


def read_joints(drawn: Drawn, message: JointState, now_ns: int) -> None:
    if len(message.name) == len(message.position):
        drawn.joints = dict(zip(message.name, message.position, strict=True))


def read_state(drawn: Drawn, message: PolicyState, now_ns: int) -> None:
    if len(message.names) == len(message.values):
        drawn.state = dict(zip(message.names, message.values, strict=True))


def read_description(drawn: Drawn, message: String, now_ns: int) -> None:
    drawn.description = message.data


def _round(event: ChunkRequested | ChunkAnswered | ChunkComputed) -> tuple[str, str, int]:
    return event.key.session, event.key.task, event.round


def _ignore(message: Any) -> None:
    """Never called: messages are taken, not delivered."""
