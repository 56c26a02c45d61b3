"""The link of a contracted robot to its drivers: standard ROS 2 topics (`robot.driver_link`)."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.duration import Duration
from rclpy.event_handler import (
    PublisherEventCallbacks,
    QoSSubscriptionMatchedInfo,
    SubscriptionEventCallbacks,
)
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.task import Future
from std_msgs.msg import Bool, Float64MultiArray
from std_srvs.srv import SetBool, Trigger

from kairos_ros.core.errors import ConfigError
from kairos_ros.nodes.arm_claim import CLAIM_S, LOOK_AROUND_S, ArmClaim, Rival, link_name
from kairos_ros.nodes.driver_messages import (
    entries_from,
    gripper_goal,
    in_driver_unit,
    joints_from,
    picture_from,
    trajectory,
    trajectory_goal,
)
from kairos_ros.nodes.driver_topics import (
    Channel,
    channels,
    controller_mismatches,
    controllers,
    service_mismatch,
    services,
    topic_mismatches,
)
from kairos_ros.nodes.goal_stream import GoalStream
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.contract import Arm, Command, RobotContract
from kairos_ros.robot.driver_link import Entries, Glance, Objection, Positions
from kairos_ros.robot.joint_check import Mismatch, joint_mismatches

LOOK_EVERY_S = 0.2
"""How often the graph is asked who else is there."""
COMMANDED = "commanded by another"
STAMP = slice(4, 12)
"""Of the CDR bytes of a message with a header."""
AFTER_STAMP = slice(12, None)
ANSWER_WITHIN_NS = 2_000_000_000
GRIPS = 0.02
"""Of a gripper's range: a target that moved by less is the same."""
SETTLED = 3
"""After a cell's answer, older messages may still be under way; from this one on they are new."""
UNSTAMPED = bytes(8)
"""Some drivers leave the stamp out."""


class _Heard:
    """The newest message of a topic. Written by the executor thread, read by the control thread:
    `newest` is replaced as a whole."""

    def __init__(self, *, stamped: bool, watched: bool = False) -> None:
        """stamped: the message has a header. watched: its content must change."""
        self.newest: tuple[bytes, int, int] | None = None
        """CDR bytes, arrival of the first message with their stamp, and with their content."""
        self.count = 0
        self._stamped, self._watched = stamped, watched

    def __call__(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        before, at_ns, changed_ns = self.newest or (b"", now_ns, now_ns)
        stamp = data[STAMP]
        if not self._stamped or stamp != before[STAMP] or stamp == UNSTAMPED:
            at_ns = now_ns
        if not self._watched or data[AFTER_STAMP] != before[AFTER_STAMP]:
            changed_ns = now_ns
        self.newest = data, at_ns, changed_ns
        self.count += 1


class RosDriverLink:
    """A `DriverLink` with a node and a thread of its own, so that nothing else delays it.

    One robot node at a time commands an arm (`arm_claim`). Use it in this order: `start`, then
    everything else, `close`.
    """

    def __init__(self, contract: RobotContract, namespace: str, context: Context | None = None):
        """Raises ConfigError for a controller that cannot be spoken to."""
        self._contract = contract
        self._channels, self._services = channels(contract), services(contract)
        self._controllers = controllers(contract)
        self._node = rclpy.create_node(
            link_name(),
            namespace=namespace,
            context=context,
            use_global_arguments=False,  # they rename the robot node, and not this one
            start_parameter_services=False,
        )
        watched = {
            f"arms.{a}.cameras.{c}"
            for a, arm in enumerate(contract.arms)
            for c, camera in enumerate(arm.cameras)
            if camera.frozen_after_s
        }
        self._heard = {
            c.field: _Heard(stamped=hasattr(c.kind, "header"), watched=c.field in watched)
            for c in self._channels
            if c.heard
        }
        self._fields = {
            camera.key: (f"arms.{a}.cameras.{c}", camera)
            for a, arm in enumerate(contract.arms)
            for c, camera in enumerate(arm.cameras)
        }
        self._lives: Counter[str] = Counter()
        """Publishers that were found since the start, by field."""
        for channel in self._channels:
            if channel.heard:
                hear = self._on_done if channel.kind is Bool else self._heard[channel.field]
                raw = channel.kind is not Bool
                self._node.create_subscription(
                    channel.kind,
                    channel.topic,
                    hear,
                    channel.qos,
                    raw=raw,
                    event_callbacks=SubscriptionEventCallbacks(
                        matched=partial(self._on_matched, channel.field),
                        use_default_callbacks=False,
                    ),
                )
        self._clients = {
            service.field: self._node.create_client(service.kind, service.name)
            for service in self._services
        }
        self._publishers: dict[str, Any] = {}
        self._streams: dict[str, GoalStream] = {}
        self._gripped: dict[str, float] = {}
        """Where a gripper was told to go last, by field."""
        self._decoded: dict[str, tuple[bytes, Any]] = {}
        self._objection: Objection | None = None
        self._give_way: Objection | None = None
        self._commands = False
        self._asked: tuple[Future, int, dict[str, int] | None]
        """The cell's answer to the newest task, when it was asked for, and what had been told when
        the answer was there."""
        self._prepared = True
        self._done: bool | None = None
        self._done_count = 0
        self._claim = ArmClaim(self._node, self._channels, self._controllers)
        self._node.create_timer(LOOK_EVERY_S, self._look)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._spin, name="driver_link", daemon=True)
        self._thread.start()

    def start(self, within_s: float, look_around_s: float = LOOK_AROUND_S) -> None:
        """Begins to command the arm once the drivers fit the contract and nobody else commands it.

        Raises ConfigError with everything that does not fit after `within_s`.
        """
        give_up = time.monotonic() + within_s
        while not self._claimed(give_up, look_around_s):
            time.sleep(0.05)
        self._commands = True
        while self._objection is not None and time.monotonic() < give_up:
            time.sleep(0.05)  # controllers are about to find us

    def commanders(self) -> list[Rival]:
        """Everybody else who commands the arm."""
        return self._claim.rivals()

    def mismatches(self) -> list[Mismatch]:
        """Everything that does not fit the contract now, but for who else commands the arm."""
        found = [
            service_mismatch(self._node, service)
            for service in self._services
            if not self._clients[service.field].service_is_ready()
        ]
        for controller in self._controllers:
            found += controller_mismatches(self._node, controller)
        for channel in self._channels:
            wrong = list(topic_mismatches(self._node, channel))
            if not wrong and channel.heard and self._is_silent(channel):
                told = f"no message came on {channel.topic} ({channel.field}) yet"
                wrong = [Mismatch("no message", told)]
            found += wrong
        for a, arm in enumerate(self._contract.arms):
            if told := self.positions(a):
                found += joint_mismatches(arm, told, self._contract.tolerance)
        return found

    def positions(self, arm: int) -> Positions | None:
        heard = self._heard[f"arms.{arm}.joint_states"].newest
        if heard is None:
            return None
        data, at_ns, _ = heard
        told = self._contract.arms[arm]
        names, values = self._decode(f"joints {arm}", data, lambda: joints_from(told, data))
        return Positions(names, values, at_ns)

    def entries(self, extra: int) -> Entries | None:
        heard = self._heard[f"extra_state.{extra}"].newest
        if heard is None:
            return None
        data, at_ns, _ = heard
        told = self._contract.extra_state[extra]
        return Entries(
            self._decode(f"extra {extra}", data, lambda: entries_from(told, data)), at_ns
        )

    def glance(self, key: str) -> Glance | None:
        heard = self._heard[self._fields[key][0]].newest
        return Glance(heard[1], heard[2]) if heard else None

    def picture(self, key: str) -> bytes:
        field, camera = self._fields[key]
        data = self._heard[field].newest[0]
        return self._decode(f"camera {key}", data, lambda: picture_from(camera, data))

    def command(self, arm: int, positions: Mapping[str, float]) -> None:
        section = self._contract.arms[arm]
        for c, command in enumerate(section.commands):
            field = f"arms.{arm}.commands.{c}"
            to = self._publishers.get(field) or self._streams.get(field)
            if to is None:
                return  # we gave way a moment ago
            values = in_driver_unit(section, command, positions)
            if command.kind == "gripper_command":
                if self._grips_anew(field, section, command, values[0]):
                    to.send(gripper_goal(command, values[0]))
            elif command.kind == "follow_joint_trajectory":
                to.send(trajectory_goal(section, command, values))
            elif command.kind == "joint_trajectory":
                to.publish(trajectory(section, command, values))
            else:
                to.publish(Float64MultiArray(data=values))

    def torque(self, on: bool) -> None:
        for field, client in self._clients.items():
            if field.endswith(".torque"):
                client.call_async(SetBool.Request(data=on))

    def lives(self, arm: int) -> object:
        return self._lives[f"arms.{arm}.joint_states"]

    def begin(self) -> None:
        self._gripped.clear()
        for stream in self._streams.values():
            stream.rejected = False

    def objection(self) -> Objection | None:
        if self._give_way is not None:
            return self._give_way
        for controller in self._controllers:
            stream = self._streams.get(controller.field)
            if stream is not None and stream.rejected:
                return Objection("goal rejected", f"{controller.name} rejected a goal; see its log")
        return self._objection

    def announce(self, goal: TaskGoal) -> None:
        self._done = None
        self._prepared = "cell.new_task" not in self._clients
        if not self._prepared:
            self._ask_cell()

    def prepared(self) -> bool:
        if self._prepared:
            return True
        answer, asked_ns, heard_before = self._asked
        if not answer.done():
            if time.monotonic_ns() - asked_ns > ANSWER_WITHIN_NS:
                self._ask_cell()  # a server that had not found us answered nobody
        elif heard_before is None:
            self._asked = answer, asked_ns, self._told_by_cell()
        else:
            told = self._told_by_cell()
            self._prepared = all(told[field] - n >= SETTLED for field, n in heard_before.items())
        return self._prepared

    def done(self) -> bool | None:
        return self._done if self._prepared else None

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.wait_for_all_acked(Duration(seconds=0.2))
        self._executor.shutdown()
        self._thread.join()
        self._node.destroy_node()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass  # the process leaves
        except BaseException as error:
            self._objection = Objection("link failed", f"the link to the drivers died: {error!r}")
            raise

    def _decode(self, what: str, data: bytes, read: Callable[[], Any]) -> Any:
        """Reads a message once; the control thread asks for it several times."""
        known = self._decoded.get(what)
        if known is None or known[0] is not data:
            known = self._decoded[what] = data, read()
        return known[1]

    def _ask_cell(self) -> None:
        """For the next task."""
        answer = self._clients["cell.new_task"].call_async(Trigger.Request())
        self._asked = answer, time.monotonic_ns(), None

    def _told_by_cell(self) -> dict[str, int]:
        """How many messages came about the task, by field."""
        extras = {f: one.count for f, one in self._heard.items() if f.startswith("extra_state")}
        return extras | ({"done": self._done_count} if "cell.done_topic" in self._heard else {})

    def _on_matched(self, field: str, info: QoSSubscriptionMatchedInfo) -> None:
        self._lives[field] = info.total_count

    def _on_done(self, message: Bool) -> None:
        self._done = message.data
        self._done_count += 1

    def _is_silent(self, channel: Channel) -> bool:
        if channel.kind is Bool:
            return not self._done_count
        return self._heard[channel.field].newest is None

    def _claimed(self, give_up: float, look_around_s: float) -> bool:
        """One attempt to begin to command. Raises ConfigError where it was the last one."""
        problems = [*self.mismatches(), *map(_as_mismatch, self._claim.rivals())]
        if not problems and self._claim.looked_around(look_around_s):
            self._create_publishers()
            time.sleep(CLAIM_S)
            rivals = self._claim.rivals()
            if not rivals:
                return True
            first = self._claim.comes_first()
            self._withdraw()
            problems = [_as_mismatch(rival) for rival in rivals]
            time.sleep(0.0 if first else 3 * CLAIM_S)
        if problems and time.monotonic() > give_up:
            told = "\n".join(f"  {problem.code}: {problem.text}" for problem in problems)
            raise ConfigError(f"the {self._contract.robot} is not as its contract says:\n{told}")
        return False

    def _withdraw(self) -> None:
        """Commands no more. In the thread that spins: it dies of what is destroyed beside it."""

        done = self._executor.create_task(self._destroy_publishers)
        while not done.done() and self._thread.is_alive():
            time.sleep(0.01)

    def _destroy_publishers(self) -> None:
        publishers, self._publishers = self._publishers, {}
        streams, self._streams = self._streams, {}
        for publisher in publishers.values():
            self._node.destroy_publisher(publisher)
        for stream in streams.values():
            stream.close()

    def _create_publishers(self) -> None:
        for channel in self._channels:
            if not channel.heard:
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

    def _grips_anew(self, field: str, arm: Arm, command: Command, position: float) -> bool:
        """Whether a gripper's target moved by enough for another goal: each one starts it anew."""
        joint = next(j for j in arm.joints if j.name == arm.joints_of(command)[0])
        before = self._gripped.get(field)
        if before is not None and abs(position - before) < GRIPS * (joint.upper - joint.lower):
            return False
        self._gripped[field] = position
        return True

    def _look(self) -> None:
        """Asks the graph who is there."""
        objection = None
        for rival in self._claim.intruders():
            objection = Objection(COMMANDED, f"{rival.told}; end one of them")
            if self._commands and self._claim.gives_way(rival):
                self._give_way = Objection(COMMANDED, f"{rival.told}, and was first; start anew")
                self._node.get_logger().error(f"{COMMANDED}: {self._give_way.text}")
                self._commands = False
                self._destroy_publishers()
        for channel in self._claim.channels:
            publisher = self._publishers.get(channel.field)
            if publisher is not None and not publisher.get_subscription_count():
                text = f"no controller listens on {channel.topic}; start or activate it"
                objection = Objection("no controller", text, passes=True)
        for controller in self._controllers:
            stream = self._streams.get(controller.field)
            if stream is not None and not self._node.count_services(controller.goals):
                text = f"no controller serves {controller.name}; start or activate it"
                objection = Objection("no controller", text, passes=True)
        self._objection = objection


def _as_mismatch(rival: Rival) -> Mismatch:
    return Mismatch(COMMANDED, rival.told)
