"""Who publishes on a robot's own topics, by node: the DDS graph knows even whoever says nothing."""

from collections import Counter

from rclpy.node import Node

from kairos_ros.core.server_status import ServerStatus

MOST_NAMED = 5


def strange_publishers(node: Node, server: ServerStatus | None) -> list[str]:
    """Publishers on the action_chunk and chunk_request of robot node `node` that should not be
    there, a line each.

    server: whom the robot asks; its node has one publisher of chunks. A process that was killed
    stays in the graph for up to 20 s.
    """
    own = node.get_fully_qualified_name()
    expected = {"action_chunk": server.node if server else "", "chunk_request": own}
    found: list[str] = []
    for topic, owner in expected.items():
        names = Counter(
            f"{info.node_namespace.rstrip('/')}/{info.node_name}"
            for info in node.get_publishers_info_by_topic(topic)
        )
        if owner or topic == "chunk_request":
            found += [f"{name} on {topic}" for name in names if name != owner]
        if names[owner] > 1:
            found.append(f"{names[owner]} nodes called {owner} on {topic}")
    more = len(found) - MOST_NAMED
    return [*found[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
