"""The publisher of /diagnostics that every node has."""

from collections.abc import Iterable

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node

from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.nodes import qos


class DiagnosticsPublisher:
    """All fleets share the topic: the names of statuses tell them apart."""

    def __init__(self, node: Node, names: FleetNames) -> None:
        self._node, self._names = node, names
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)

    def publish(self, statuses: Iterable[DiagnosticStatus]) -> None:
        message = DiagnosticArray(status=list(statuses))
        for status in message.status:
            status.name = self._names.diagnostic(status.name)
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)
