"""Which topics of which types a contract means, and whether they are there and fit."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from geometry_msgs.msg import PointStamped, PoseStamped
from rclpy.duration import Duration
from rclpy.node import Node, NodeNameNonExistentError
from rclpy.qos import (
    QoSCompatibility,
    QoSHistoryPolicy,
    QoSProfile,
    QoSReliabilityPolicy,
    qos_check_compatible,
)
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, Float64MultiArray
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from kairos_ros.core.errors import ConfigError
from kairos_ros.nodes import qos
from kairos_ros.robot.adapters.contract.contract import Command, RobotContract
from kairos_ros.robot.adapters.contract.joint_check import Mismatch

LONGEST = Duration(seconds=10**9)
"""No deadline that somebody meant is longer."""
COMMANDS = {"joint_trajectory": JointTrajectory, "float64_multi_array": Float64MultiArray}
CAMERAS = {"raw": Image, "compressed": CompressedImage}
EXTRAS = {"point": PointStamped, "pose": PoseStamped, "array": Float64MultiArray}


@dataclass(frozen=True, slots=True)
class Channel:
    """One topic of a contract."""

    topic: str
    kind: Any
    """Message class."""
    qos: QoSProfile
    """Ours."""
    heard: bool
    """We read it; else we write it."""
    field: str
    """Where the contract names it."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service that a contract calls."""

    name: str
    kind: Any
    """Service class."""
    field: str


@dataclass(frozen=True, slots=True)
class ActionController:
    """One action that a contract commands joints by."""

    name: str
    kind: Any
    """Action class."""
    field: str

    @property
    def goals(self) -> str:
        """The service that takes its goals."""
        return f"{self.name}/_action/send_goal"


def channels(contract: RobotContract) -> list[Channel]:
    """Every topic of a contract."""
    found = []
    for a, arm in enumerate(contract.arms):
        told = arm.joint_states
        found.append(
            Channel(
                arm.topic(told.topic),
                JointState,
                sensor(told.reliability),
                True,
                f"arms.{a}.joint_states",
            )
        )
        for c, command in enumerate(arm.commands):
            where = f"arms.{a}.commands.{c}"
            if kind := COMMANDS.get(command.kind):
                found.append(Channel(arm.topic(command.topic), kind, qos.TELEMETRY, False, where))
        for c, camera in enumerate(arm.cameras):
            kind, where = CAMERAS[camera.kind], f"arms.{a}.cameras.{c}"
            ours = sensor(camera.reliability)
            found.append(Channel(arm.topic(camera.topic), kind, ours, True, where))
    first = contract.arms[0]
    for e, extra in enumerate(contract.extra_state):
        kind, where = EXTRAS[extra.kind], f"extra_state.{e}"
        found.append(Channel(first.topic(extra.topic), kind, sensor("best_effort"), True, where))
    if topic := contract.cell.done_topic:
        ours = sensor("best_effort")
        found.append(Channel(first.topic(topic), Bool, ours, True, "cell.done_topic"))
    return found


def services(contract: RobotContract) -> list[Service]:
    """Every service of a contract."""
    found = [
        Service(arm.topic(arm.torque.service), SetBool, f"arms.{a}.torque")
        for a, arm in enumerate(contract.arms)
        if arm.torque is not None
    ]
    if name := contract.cell.new_task:
        found.append(Service(contract.arms[0].topic(name), Trigger, "cell.new_task"))
    return found


def controllers(contract: RobotContract) -> list[ActionController]:
    """Every action of a contract. Raises ConfigError where control_msgs is not installed."""
    return [
        ActionController(arm.topic(command.topic), _action_type(command, where), where)
        for a, arm in enumerate(contract.arms)
        for c, command in enumerate(arm.commands)
        if command.kind not in COMMANDS
        for where in [f"arms.{a}.commands.{c}"]
    ]


def _action_type(command: Command, where: str) -> Any:
    try:
        from control_msgs.action import FollowJointTrajectory, GripperCommand
    except ImportError:
        raise ConfigError(
            f"{where}: {command.kind} is an action of control_msgs, which is not installed. Use "
            "kind joint_trajectory: a joint_trajectory_controller takes the same on its topic "
            "~/joint_trajectory"
        ) from None
    return GripperCommand if command.kind == "gripper_command" else FollowJointTrajectory


def sensor(reliability: str) -> QoSProfile:
    """The newest message or none."""
    if reliability == "best_effort":
        return qos.SENSOR
    return QoSProfile(
        history=QoSHistoryPolicy.KEEP_LAST, depth=1, reliability=QoSReliabilityPolicy.RELIABLE
    )


def topic_mismatches(node: Node, channel: Channel) -> Iterator[Mismatch]:
    """Nobody at the other end, another type than ours, or a QoS that does not meet ours."""
    other = "publishes" if channel.heard else "subscribes to"
    ends = _other_ends(node, channel)
    name = f"{channel.topic} ({channel.field})"
    if not ends:
        yield Mismatch("missing topic", f"nobody {other} {name}{_near(node, channel)}")
        return
    wanted = type_name(channel.kind)
    fitting = [end for end in ends if end.topic_type == wanted]
    if not fitting:
        has = ", ".join(sorted({end.topic_type for end in ends}))
        yield Mismatch("wrong type", f"{name} is {has}; the contract says {wanted}")
        return
    told = []
    for end in fitting:
        pair = (end.qos_profile, channel.qos) if channel.heard else (channel.qos, end.qos_profile)
        compatible, why = qos_check_compatible(*map(_comparable, pair))
        if compatible != QoSCompatibility.ERROR:
            return
        told.append(f"{end.node_name}: {why.strip().rstrip(';').replace('ERROR: ', '')}")
    yield Mismatch("QoS mismatch", f"{name}: {'; '.join(told)}")


def service_mismatch(node: Node, service: Service) -> Mismatch:
    """Why a client of it finds no server."""
    name, wanted = f"{service.name} ({service.field})", type_name(service.kind)
    types = dict(node.get_service_names_and_types()).get(service.name, [])
    if other := [told for told in types if told != wanted]:
        return Mismatch("wrong type", f"{name} is {other[0]}; the contract says {wanted}")
    return Mismatch("missing service", f"nobody serves {name}")


def controller_mismatches(node: Node, controller: ActionController) -> Iterator[Mismatch]:
    """Nobody serves it, or as another type."""
    name = f"{controller.name} ({controller.field})"
    wanted = type_name(controller.kind)
    types = dict(node.get_service_names_and_types()).get(controller.goals, [])
    if other := [told for told in types if told != f"{wanted}_SendGoal"]:
        text = f"{name} is {other[0].removesuffix('_SendGoal')}; the contract says {wanted}"
        yield Mismatch("wrong type", text)
    elif not node.count_services(controller.goals):
        yield Mismatch("missing action", f"nobody serves {name}")


def clients_of(node: Node, controller: ActionController) -> list[str]:
    """Full names of all other nodes that have a client of an action."""
    if node.count_clients(controller.goals) == 0:
        return []
    found = []
    for name, namespace in node.get_node_names_and_namespaces():
        if name == node.get_name():
            continue
        with contextlib.suppress(NodeNameNonExistentError):  # it left meanwhile
            clients = node.get_client_names_and_types_by_node(name, namespace)
            if controller.goals in dict(clients):
                found.append(f"{namespace.rstrip('/')}/{name}")
    return found


def commanders(node: Node, channel: Channel) -> list[Any]:
    """Endpoint infos of everybody else who publishes on a topic that we write."""
    everybody = node.get_publishers_info_by_topic(channel.topic)
    return [end for end in everybody if end.node_name != node.get_name()]


def type_name(kind: Any) -> str:
    """Such as `sensor_msgs/msg/Image`."""
    package, folder, *_ = kind.__module__.split(".")
    return f"{package}/{folder}/{kind.__name__}"


def _other_ends(node: Node, channel: Channel) -> list[Any]:
    if channel.heard:
        return node.get_publishers_info_by_topic(channel.topic)
    return node.get_subscriptions_info_by_topic(channel.topic)


def _comparable(profile: QoSProfile) -> QoSProfile:
    """Without the deadline and lease that never end: rclpy takes them for ones that do."""
    ends = {
        name: value
        for name in ("deadline", "liveliness_lease_duration")
        if (value := getattr(profile, name)) < LONGEST
    }
    return QoSProfile(
        history=QoSHistoryPolicy.KEEP_LAST,
        depth=1,
        reliability=profile.reliability,
        durability=profile.durability,
        liveliness=profile.liveliness,
        **ends,
    )


def _near(node: Node, channel: Channel) -> str:
    """Topics of the same type, for whoever named the wrong one."""
    wanted = type_name(channel.kind)
    same = [name for name, types in node.get_topic_names_and_types() if wanted in types]
    same = [name for name in same if name != channel.topic]
    return f"; topics of this type: {', '.join(sorted(same)[:5])}" if same else ""
