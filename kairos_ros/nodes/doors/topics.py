"""The topics of clients, which are those of robot nodes: the same messages, QoS and heartbeats."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Answer, Request
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ServerStatus
from kairos_ros.doors.clients import Member
from kairos_ros.msg import ActionChunk, ChunkRequest, RobotStatus
from kairos_ros.msg import ServerStatus as ServerStatusMessage
from kairos_ros.nodes import qos
from kairos_ros.nodes.bounded import PICTURE_BYTES, subscribe
from kairos_ros.nodes.clients.standalone_node import StandaloneNode
from kairos_ros.nodes.messages.server import server_from
from kairos_ros.nodes.robot.messages import Identity, request_message, status_message
from kairos_ros.nodes.throttle import Throttle
from kairos_ros.nodes.timers import every
from kairos_ros.telemetry.answer import answer_of

GOODBYE_S = 1.0
"""The topics of a client that has left stay open for so long, so that its goodbye arrives."""


@dataclass(slots=True)
class _Topics:
    who: Identity
    status: Publisher
    requests: Publisher
    chunks: Subscription


class ClientTopics:
    """The `Topics` of `doors.clients`: its methods are called in the asyncio loop; topics are
    opened and closed in the thread that spins the node, and what comes is handed to the loop."""

    def __init__(
        self,
        standalone: StandaloneNode,
        names: FleetNames,
        loop: asyncio.AbstractEventLoop,
        *,
        heard: Callable[[ServerStatus, int], None],
        answered: Callable[[str, Answer], None],
        unreadable: Callable[[str], None],
    ) -> None:
        """heard, answered, unreadable: as those of `Clients`."""
        self._standalone, self._names, self._loop = standalone, names, loop
        self._heard, self._answered, self._unreadable = heard, answered, unreadable
        self._open: dict[str, _Topics] = {}
        """By session. Written in the loop's thread only."""
        self._left: list[tuple[float, _Topics]] = []
        """When they left; in the thread that spins only."""
        every(standalone.node, GOODBYE_S / 2, self._tidy)
        self._throttle = Throttle(standalone.node.get_logger(), burst=5, every_s=5.0)
        subscribe(
            standalone.node,
            ServerStatusMessage,
            names.common("server_status"),
            self._on_server,
            qos.ROSTER,
            refused=lambda error, raw: self._throttle.warning("server", f"ignored {error}"),
        )

    def join(self, client: Member) -> None:
        who = Identity(client.robot, client.session, client.spec, absent=client.absent)
        self._standalone.executor.create_task(self._create, client, who)

    def ready(self, client: Member) -> bool:
        topics = self._open.get(client.session)
        return bool(
            topics
            and topics.requests.get_subscription_count()
            and topics.chunks.get_publisher_count()
        )

    def send(self, client: Member, request: Request) -> None:
        if (topics := self._open.get(client.session)) is not None:
            topics.requests.publish(request_message(topics.who, request))

    def tell(self, client: Member) -> None:
        if (topics := self._open.get(client.session)) is not None:
            topics.status.publish(self._status(topics.who, client))

    def leave(self, client: Member) -> None:
        topics = self._open.pop(client.session, None)
        if topics is None:  # they are about to be opened
            client.counters["gone"] += 1
            return
        message = self._status(topics.who, client)
        message.state, message.task = RobotState.LEAVING, ""
        topics.status.publish(message)
        self._standalone.executor.create_task(self._keep, topics)

    def say_goodbye(self) -> None:
        """Waits until everybody has heard who has just left."""
        now_s = time.monotonic()
        until_s = now_s + GOODBYE_S
        for topics in [topics for at_s, topics in self._left if now_s - at_s < GOODBYE_S / 2]:
            left_s = max(0.0, until_s - time.monotonic())
            topics.status.wait_for_all_acked(Duration(seconds=left_s))

    def _status(self, who: Identity, client: Member) -> RobotStatus:
        message = status_message(who, client.report(time.monotonic_ns()))
        message.request_image_keys = list(client.cameras)
        return message

    # In the thread that spins.

    def _create(self, client: Member, who: Identity) -> None:
        node, robot = self._standalone.node, client.robot
        quiet = PublisherEventCallbacks(use_default_callbacks=False)

        def came(message: ActionChunk) -> None:
            try:
                answer = answer_of(message)
            except WireError as error:
                refused(error)
                return
            self._hand_over(self._answered, robot, answer)

        def refused(error: WireError, raw: bytes = b"") -> None:
            self._throttle.warning("chunk", f"dropped a chunk for {robot}: {error}")
            self._hand_over(self._unreadable, robot)

        topics = _Topics(
            who,
            node.create_publisher(
                RobotStatus,
                self._names.common("robot_status"),
                qos.ANNOUNCEMENT,
                event_callbacks=quiet,
            ),
            node.create_publisher(
                ChunkRequest,
                self._names.robot(robot, "chunk_request"),
                qos.EXCHANGE,
                event_callbacks=quiet,
            ),
            subscribe(
                node,
                ActionChunk,
                self._names.robot(robot, "action_chunk"),
                came,
                qos.EXCHANGE,
                most_bytes=PICTURE_BYTES,
                refused=refused,
            ),
        )
        self._hand_over(self._opened, client, topics)

    def _keep(self, topics: _Topics) -> None:
        self._left.append((time.monotonic(), topics))

    def _tidy(self) -> None:
        node, now_s = self._standalone.node, time.monotonic()
        while self._left and now_s - self._left[0][0] > GOODBYE_S:
            _, topics = self._left.pop(0)
            node.destroy_subscription(topics.chunks)
            node.destroy_publisher(topics.requests)
            node.destroy_publisher(topics.status)

    def _on_server(self, message: ServerStatusMessage) -> None:
        try:
            status = server_from(message)
        except WireError as error:
            self._throttle.warning("server", f"ignored {error}")
            return
        self._hand_over(self._heard, status, time.monotonic_ns())

    def _hand_over(self, act: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            return  # the loop has ended

    # In the loop again.

    def _opened(self, client: Member, topics: _Topics) -> None:
        if client.counters["gone"]:
            self._standalone.executor.create_task(self._keep, topics)
            return
        self._open[client.session] = topics
        self.tell(client)
