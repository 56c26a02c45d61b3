"""Nodes of tests that hear and tell much."""

from rclpy.context import Context
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node


class LightNode(Node):
    """Without parameters and events of QoS: waiting for their entities costs a third of the CPU."""

    def __init__(self, name: str, context: Context, namespace: str = "") -> None:
        super().__init__(
            name, context=context, namespace=namespace or None, start_parameter_services=False
        )

    def create_subscription(self, *args, **options):
        none = SubscriptionEventCallbacks(use_default_callbacks=False)
        options.setdefault("event_callbacks", none)
        return super().create_subscription(*args, **options)

    def create_publisher(self, *args, **options):
        none = PublisherEventCallbacks(use_default_callbacks=False)
        options.setdefault("event_callbacks", none)
        return super().create_publisher(*args, **options)
