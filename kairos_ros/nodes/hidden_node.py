"""A node for topics that no executor waits for."""

from rclpy.node import Node
from rclpy.parameter import Parameter

from kairos_ros.nodes.limited_node import LimitedNode


def hidden_node(owner: Node) -> Node:
    """`_NAME_topics` beside the node NAME. Its `_` hides it from `ros2 node list`.

    Nobody spins it, so it has no services: who called one, as `ros2 param list` does of every node
    that it sees, would wait for ever.
    """
    return LimitedNode(
        f"_{owner.get_name()}_topics",
        namespace=owner.get_namespace(),
        context=owner.context,
        use_global_arguments=False,
        start_parameter_services=False,
        parameter_overrides=[Parameter("start_type_description_service", value=False)],
    )
