"""What commands an arm: a publisher per command topic, a stream of goals per action."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from std_msgs.msg import Float64MultiArray

from kairos_ros.nodes.robot.drivers.goal_stream import GoalStream
from kairos_ros.nodes.robot.drivers.messages import (
    gripper_goal,
    in_driver_unit,
    trajectory,
    trajectory_goal,
)
from kairos_ros.nodes.robot.drivers.topics import ActionController, Channel
from kairos_ros.robot.adapters.contract.contract import Command, ContractArm, RobotContract

GRIPS = 0.02
"""Of a gripper's range: a target that moved by less is the same."""


class DriverCommands:
    """They are on the graph between `claim` and `give_up` only. `send` and `begin` from any thread,
    all else where the node's executor does not look at what is made or destroyed."""

    def __init__(
        self,
        node: Node,
        contract: RobotContract,
        channels: Sequence[Channel],
        controllers: Sequence[ActionController],
    ) -> None:
        """channels: command topics; others are left alone."""
        self._node, self._contract = node, contract
        self._channels = [channel for channel in channels if not channel.heard]
        self._controllers = controllers
        self._publishers: dict[str, Any] = {}
        self._streams: dict[str, GoalStream] = {}
        self._gripped: dict[str, float] = {}
        """Where a gripper was told to go last, by field."""

    def claim(self) -> None:
        for channel in self._channels:
            self._publishers[channel.field] = self._node.create_publisher(
                channel.kind,
                channel.topic,
                channel.qos,
                event_callbacks=PublisherEventCallbacks(use_default_callbacks=False),
            )
        for controller in self._controllers:
            self._streams[controller.field] = GoalStream(
                self._node, controller.kind, controller.name
            )

    def give_up(self) -> None:
        """In the node's executor."""
        publishers, self._publishers = self._publishers, {}
        streams, self._streams = self._streams, {}
        for publisher in publishers.values():
            self._node.destroy_publisher(publisher)
        for stream in streams.values():
            stream.close()

    def flush(self) -> None:
        """Waits a moment for controllers to have what was sent."""
        for publisher in self._publishers.values():
            publisher.wait_for_all_acked(Duration(seconds=0.2))

    def begin(self) -> None:
        """A new task: what controllers rejected before does not count any more, and what they were
        too late for is not sent."""
        self._gripped.clear()
        for stream in self._streams.values():
            stream.begin()

    def send(self, arm: int, positions: Mapping[str, float], *, goals: bool = True) -> None:
        """Targets of one arm's joints, rad or m. Nothing is sent after `give_up`.

        goals: also to controllers that are actions.
        """
        section = self._contract.arms[arm]
        for c, command in enumerate(section.commands):
            field = f"arms.{arm}.commands.{c}"
            to: Any = self._publishers.get(field) or self._streams.get(field)  # as its kind says
            if to is None:
                return
            if not goals and field in self._streams:
                continue
            values = in_driver_unit(section, command, positions)
            if command.kind == "gripper_command":
                if self._grips_anew(field, section, command, values[0]):
                    to.send(gripper_goal(command, values[0]))
                else:
                    to.send_late()
            elif command.kind == "follow_joint_trajectory":
                to.send(trajectory_goal(section, command, values))
            elif command.kind == "joint_trajectory":
                to.publish(trajectory(section, command, values))
            else:
                to.publish(Float64MultiArray(data=values))

    def rejected(self) -> ActionController | None:
        """A controller that rejected a goal since the task began."""
        for controller in self._controllers:
            stream = self._streams.get(controller.field)
            if stream is not None and stream.rejected:
                return controller
        return None

    def unheard(self) -> Iterator[str]:
        """What nobody listens to, as text."""
        for channel in self._channels:
            publisher = self._publishers.get(channel.field)
            if publisher is not None and not publisher.get_subscription_count():
                yield f"no controller listens on {channel.topic}"
        for controller in self._controllers:
            stream = self._streams.get(controller.field)
            if stream is not None and not self._node.count_services(controller.goals):
                yield f"no controller serves {controller.name}"

    def _grips_anew(self, field: str, arm: ContractArm, command: Command, position: float) -> bool:
        """Whether a gripper's target moved by enough for another goal: each one starts it anew."""
        joint = next(j for j in arm.joints if j.name == arm.joints_of(command)[0])
        before = self._gripped.get(field)
        if before is not None and abs(position - before) < GRIPS * (joint.upper - joint.lower):
            return False
        self._gripped[field] = position
        return True
