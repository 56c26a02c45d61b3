"""A node whose process ends when DDS hangs in a change of its topics or services."""

from rclpy.node import Node

from kairos_ros.host.dds_deadlock import changing_entities

_limited = changing_entities()


class LimitedNode(Node):
    """Every node of this package is one. Its methods are those of rclpy."""

    create_publisher = _limited(Node.create_publisher)
    create_subscription = _limited(Node.create_subscription)
    create_client = _limited(Node.create_client)
    create_service = _limited(Node.create_service)
    destroy_publisher = _limited(Node.destroy_publisher)
    destroy_subscription = _limited(Node.destroy_subscription)
    destroy_client = _limited(Node.destroy_client)
    destroy_service = _limited(Node.destroy_service)
    destroy_node = _limited(Node.destroy_node)
