"""Which fleet a node belongs to, by its namespace."""

from rclpy.node import Node

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import COMMON, FleetNames, is_robot_name
from kairos_ros.core.wire_check import NAME_CHARS, printable


def fleet_of(node: Node) -> FleetNames:
    """Of a node that is there once for a whole fleet."""
    return FleetNames.of_common_node(node.get_namespace())


def robot_in_fleet(node: Node, name: str) -> tuple[FleetNames, str]:
    """The fleet of a robot node, and what the robot is called in it.

    name: the end of the node's namespace, such as `cell_1/arm_1` of `/site_a/cell_1/arm_1`; what is
    before it is the fleet's. Empty: the last part of it. Raises ConfigError where the namespace
    does not end so, or is none.
    """
    own = node.get_namespace()
    robot = name or own.rpartition("/")[2]
    if not is_robot_name(robot):
        raise ConfigError(
            f"a robot is named by its namespace, ROS names of at most {NAME_CHARS} characters, "
            f"none of them {COMMON}, and not '{printable(robot)}'; start with -r __ns:=/arm_1"
        )
    if not own.endswith(f"/{robot}"):
        raise ConfigError(
            f"parameter name is {printable(name)}, but the node's namespace is {own}; start with "
            f"-r __ns:=/{robot}, or below the fleet's namespace"
        )
    return FleetNames(own.removesuffix(f"/{robot}")), robot
