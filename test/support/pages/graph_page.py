"""The table of topics, services and actions in docs/ros.md, of a page and of a running fleet."""

import re
from pathlib import Path
from typing import NamedTuple

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

PAGE = Path(__file__).parents[3] / "docs" / "ros.md"
KINDS = ("serving", "robot", "safety", "monitor", "planner", "recorder", "viz")
ROS_OWN = re.compile("/(rosout|parameter_events)|.*/transition_event|.*/_action/.*")


class Row(NamedTuple):
    """One line of it."""

    name: str
    kind: str
    offered_by: str
    read_by: str
    how: str
    """QoS of a topic, which both sides have; else service or action."""

    def __str__(self) -> str:
        return (
            f"| `{self.name}` | `{self.kind}` | {self.offered_by} | {self.read_by} | {self.how} |"
        )


def listed(page: str) -> set[Row]:
    """What the page says."""
    lines = [line for line in page.splitlines() if line.startswith("| `/") and line.count("|") == 6]
    return {Row(*(cell.strip(" `") for cell in line.split("|")[1:-1])) for line in lines}


def found(node: Node) -> set[Row]:
    """What the graph says of the nodes of one fleet whose robot is arm_1."""
    ends: dict[tuple[str, str, str], tuple[set[str], set[str]]] = {}
    for topic, kinds in node.get_topic_names_and_types():
        if ROS_OWN.fullmatch(topic):
            continue
        sides = (
            node.get_publishers_info_by_topic(topic),
            node.get_subscriptions_info_by_topic(topic),
        )
        for side, infos in enumerate(sides):
            for info in infos:
                if info.node_name in KINDS:
                    key = _general(topic), kinds[0], _qos(info.qos_profile)
                    ends.setdefault(key, (set(), set()))[side].add(info.node_name)
    for name, namespace in node.get_node_names_and_namespaces():
        if name not in KINDS:
            continue
        for service, kinds in node.get_service_names_and_types_by_node(name, namespace):
            if service.startswith(f"{namespace}/{name}/"):
                continue
            action, is_action, _ = service.partition("/_action/")
            kind = kinds[0].removesuffix("_SendGoal") if is_action else kinds[0]
            if not is_action or kind != kinds[0]:
                key = _general(action), kind, "action" if is_action else "service"
                ends.setdefault(key, (set(), set()))[0].add(name)
    return {
        Row(name, _short(kind), ", ".join(sorted(by)), ", ".join(sorted(to)), how)
        for (name, kind, how), (by, to) in ends.items()
    }


def _short(kind: str) -> str:
    """Of sensor_msgs/msg/Image: sensor_msgs/Image; of types of this package, their names."""
    package, _, name = kind.split("/")
    return name if package == "kairos_ros" else f"{package}/{name}"


def _general(name: str) -> str:
    return re.sub("/camera/[^/]+/", "/camera/KEY/", name.replace("/arm_1/", "/ROBOT/"))


def _qos(profile: QoSProfile) -> str:
    reliable = profile.reliability is ReliabilityPolicy.RELIABLE
    latched = profile.durability is DurabilityPolicy.TRANSIENT_LOCAL
    return ("reliable" if reliable else "best effort") + (", latched" if latched else "")
