"""Adapter `ros2`: a robot behind standard ROS 2 drivers, as its contract says."""

from collections.abc import Sequence

from rclpy.node import Node

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.nodes.robot.drivers.link import RosDriverLink
from kairos_ros.nodes.robot.drivers.topics import channels
from kairos_ros.robot.adapters.contract.contract_file import (
    at_drivers,
    contract_path,
    read_contract,
)
from kairos_ros.robot.adapters.contract.contracted_robot import ContractedRobot


def ros2_body(
    node: Node,
    names: FleetNames,
    control_rate_hz: float,
    *,
    contract: str,
    drivers: Sequence[str],
    start_within_s: float,
) -> ContractedRobot:
    """The body of the robot node `node`, once its drivers are there and fit the contract.

    Args:
        node: gives the namespace, and the context.
        control_rate_hz: must be the contract's.
        contract: a file, or the name of a shipped one.
        names: of the robot's fleet.
        drivers: namespaces of the arms' drivers, instead of the contract's; without a slash in
            front they are below the fleet's.
        start_within_s: how long drivers may be missing, and somebody else may command the arm; 20 s
            are what DDS takes to notice that a node was killed.

    Raises ConfigError.
    """
    read = read_contract(contract_path(contract))
    if drivers:
        read = at_drivers(read, [names.resolve(driver) for driver in drivers])
    if control_rate_hz != read.control_rate_hz:
        raise ConfigError(
            f"parameter control_rate_hz is {control_rate_hz:g}, but contract {contract} says "
            f"{read.control_rate_hz:g}; a policy runs at the rate that it was trained at"
        )
    own = node.get_namespace()
    for channel in channels(read):
        if channel.topic.startswith(f"{own}/"):
            raise ConfigError(
                f"robot {own} and its driver share a namespace: {channel.topic} ({channel.field}) "
                "would be the robot's own topic; name the robot, or the driver, otherwise"
            )
    link = RosDriverLink(read, own, node.context)
    try:
        link.start(start_within_s)
    except ConfigError:
        link.close()
        raise
    return ContractedRobot(read, link)
