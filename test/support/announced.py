"""What a serving node says about itself, said by a test that answers requests in its place."""

import os
import uuid

from kairos_ros.msg import ServerStatus
from rclpy.node import Node

from kairos_ros.nodes import qos

TOPIC = "/kairos/server_status"


class AnnouncedServer:
    """Active, with a heartbeat, while the node spins and until it falls silent or leaves."""

    def __init__(self, node: Node, **fields) -> None:
        self.server = uuid.uuid4().hex
        self._node = node
        self._fields = {"node": node.get_fully_qualified_name(), "host": "test", **fields}
        self._publisher = node.create_publisher(ServerStatus, TOPIC, qos.ANNOUNCEMENT)
        self._heartbeat = node.create_timer(0.5, self.tell)
        self.tell()

    def tell(self, state: int = ServerStatus.ACTIVE) -> None:
        fields = {"server": self.server, "pid": os.getpid(), "state": state}
        self._publisher.publish(ServerStatus(**(fields | self._fields)))

    def fall_silent(self) -> None:
        self._heartbeat.cancel()

    def leave(self) -> None:
        self.fall_silent()
        self.tell(ServerStatus.LEAVING)
