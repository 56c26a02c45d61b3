"""The serving node's ends of robots' topics: a chunk publisher and a request subscription each."""

import time
from collections.abc import Callable, Iterable, Set

from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription

from kairos_ros.core.errors import WireError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.msg import ActionChunk, ChunkRequest
from kairos_ros.nodes import qos
from kairos_ros.nodes.bounded import subscribe

REQUEST_OVERHEAD = 20_000
"""Bytes of a request besides its observation."""


class RobotTopics:
    """Opens and closes topics one robot at a time, in at most a quarter of the time: each takes
    milliseconds, and others wait for their actions while hundreds of robots come.

    request: called with the robot of the topic and what came on it. unreadable: the same for what
    is no request, with why and the bytes. most_bytes: of an observation.
    """

    def __init__(
        self,
        node: Node,
        names: FleetNames,
        request: Callable[[str, ChunkRequest], None],
        unreadable: Callable[[str, WireError, bytes], None],
        most_bytes: int,
    ) -> None:
        self._node, self._names = node, names
        self._request, self._unreadable = request, unreadable
        self._most_bytes = most_bytes + REQUEST_OVERHEAD
        self._open: dict[str, tuple[Publisher, Subscription]] = {}
        self._due_ns = 0
        """Opening and closing pauses until then."""

    def publish(self, robot: str, chunk: ActionChunk) -> None:
        """To a robot whose topics are open; nothing for others."""
        if robot in self._open:
            self._open[robot][0].publish(chunk)

    def due_ns(self, wanted: Set[str]) -> int | None:
        """When `adjust` has something to do, on the monotonic clock; None: nothing."""
        return None if self._open.keys() == wanted else self._due_ns

    def adjust(self, wanted: Set[str]) -> None:
        """A step towards open topics for just the `wanted` robots."""
        now_ns = time.monotonic_ns()
        due_ns = self.due_ns(wanted)
        if due_ns is None or now_ns < due_ns:
            return
        gone = next((robot for robot in self._open if robot not in wanted), None)
        if gone is not None:
            self.close([gone])
        else:
            self._open_for(next(robot for robot in wanted if robot not in self._open))
        done_ns = time.monotonic_ns()
        self._due_ns = done_ns + 3 * (done_ns - now_ns)

    def close(self, robots: Iterable[str] | None = None) -> None:
        """Of these robots, at once; None: of all."""
        for robot in list(self._open if robots is None else robots):
            publisher, subscription = self._open.pop(robot)
            self._node.destroy_subscription(subscription)
            self._node.destroy_publisher(publisher)

    def _open_for(self, robot: str) -> None:
        # Each event handler is one more entity that the executor waits for: with rclpy's default
        # ones (warnings of foreign QoS) waiting for 32 robots costs twice as much CPU.
        publisher = self._node.create_publisher(
            ActionChunk,
            self._names.robot(robot, "action_chunk"),
            qos.EXCHANGE,
            event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
        )
        subscription = subscribe(
            self._node,
            ChunkRequest,
            self._names.robot(robot, "chunk_request"),
            lambda message: self._request(robot, message),
            qos.EXCHANGE,
            most_bytes=self._most_bytes,
            refused=lambda error, raw: self._unreadable(robot, error, raw),
        )
        self._open[robot] = (publisher, subscription)
