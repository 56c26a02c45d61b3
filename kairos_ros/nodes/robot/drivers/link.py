"""The link of a contracted robot to its drivers: standard ROS 2 topics (`robot.driver_link`)."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rclpy.client import Client
from rclpy.context import Context
from rclpy.event_handler import QoSSubscriptionMatchedInfo, SubscriptionEventCallbacks
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.task import Future
from std_msgs.msg import Bool
from std_srvs.srv import SetBool

from kairos_ros.core.errors import ConfigError
from kairos_ros.nodes.limited_node import LimitedNode
from kairos_ros.nodes.robot.claim import CLAIM_S, LOOK_AROUND_S, ArmClaim, OtherCommander, link_name
from kairos_ros.nodes.robot.drivers.cell import DriverCell
from kairos_ros.nodes.robot.drivers.commands import DriverCommands
from kairos_ros.nodes.robot.drivers.messages import entries_from, joints_from, picture_from
from kairos_ros.nodes.robot.drivers.topics import (
    Channel,
    channels,
    controller_mismatches,
    controllers,
    service_mismatch,
    services,
    topic_mismatches,
)
from kairos_ros.nodes.timers import every
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.contract.contract import RobotContract
from kairos_ros.robot.adapters.contract.driver_link import Entries, Glance, Objection, Positions
from kairos_ros.robot.adapters.contract.joint_check import Mismatch, joint_mismatches

LOOK_EVERY_S = 0.2
"""How often the graph is asked who else is there."""
COMMANDED = "commanded by another"
STAMP = slice(4, 12)
"""Of the CDR bytes of a message with a header."""
AFTER_STAMP = slice(12, None)
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
        self._node = LimitedNode(
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
        self._clients: dict[str, Client] = {
            service.field: self._node.create_client(service.kind, service.name)
            for service in self._services
        }
        self._cell = DriverCell(self._clients.get("cell.new_task"), self._told_by_cell)
        for channel in self._channels:
            if channel.heard:
                hear = self._cell.on_done if channel.kind is Bool else self._heard[channel.field]
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
        self._decoded: dict[str, tuple[bytes, Any]] = {}
        self._objection: Objection | None = None
        self._give_way: Objection | None = None
        self._commands = False
        self._commander = DriverCommands(self._node, contract, self._channels, self._controllers)
        self._claim = ArmClaim(self._node, self._channels, self._controllers)
        every(self._node, LOOK_EVERY_S, self._look)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self._node)
        self._closed: Future = Future()
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

    def commanders(self) -> list[OtherCommander]:
        """Everybody else who commands the arm."""
        return self._claim.other_commanders()

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
            if positions := self.positions(a):
                found += joint_mismatches(arm, positions, self._contract.tolerance)
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
        heard = self._heard[field].newest
        assert heard is not None, f"camera {key} has no picture yet; glance tells"
        data = heard[0]
        picture: bytes = self._decode(f"camera {key}", data, lambda: picture_from(camera, data))
        return picture

    def command(self, arm: int, positions: Mapping[str, float]) -> None:
        self._commander.send(arm, positions)

    def aim(self, arm: int, positions: Mapping[str, float]) -> None:
        self._commander.send(arm, positions, goals=False)

    def torque(self, on: bool) -> None:
        for field, client in self._clients.items():
            if field.endswith(".torque"):
                client.call_async(SetBool.Request(data=on))

    def lives(self, arm: int) -> object:
        return self._lives[f"arms.{arm}.joint_states"]

    def begin(self) -> None:
        self._commander.begin()

    def objection(self) -> Objection | None:
        if self._give_way is not None:
            return self._give_way
        if controller := self._commander.rejected():
            return Objection("goal rejected", f"{controller.name} rejected a goal; see its log")
        return self._objection

    def announce(self, goal: TaskGoal) -> None:
        self._cell.announce()

    def prepared(self) -> bool:
        return self._cell.prepared()

    def done(self) -> bool | None:
        return self._cell.done()

    def close(self) -> None:
        self._commander.flush()
        self._closed.set_result(None)
        self._thread.join()
        # not beside the thread that spins, which in Jazzy ends with an error then
        self._executor.shutdown()
        self._node.destroy_node()

    def _spin(self) -> None:
        try:
            self._executor.spin_until_future_complete(self._closed)
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

    def _told_by_cell(self) -> dict[str, int]:
        """How many messages came about the task, by field."""
        extras = {f: one.count for f, one in self._heard.items() if f.startswith("extra_state")}
        return extras | (
            {"done": self._cell.done_count} if "cell.done_topic" in self._heard else {}
        )

    def _on_matched(self, field: str, info: QoSSubscriptionMatchedInfo) -> None:
        self._lives[field] = info.total_count

    def _is_silent(self, channel: Channel) -> bool:
        if channel.kind is Bool:
            return not self._cell.done_count
        return self._heard[channel.field].newest is None

    def _claimed(self, give_up: float, look_around_s: float) -> bool:
        """One attempt to begin to command. Raises ConfigError where it was the last one."""
        problems = [*self.mismatches(), *map(_as_mismatch, self._claim.other_commanders())]
        if not problems and self._claim.looked_around(look_around_s):
            self._within(self._commander.claim)
            time.sleep(CLAIM_S)
            others = self._claim.other_commanders()
            if not others:
                return True
            first = self._claim.comes_first()
            self._within(self._commander.give_up)
            problems = [_as_mismatch(other) for other in others]
            time.sleep(0.0 if first else 3 * CLAIM_S)
        if problems and time.monotonic() > give_up:
            told = "\n".join(f"  {problem.code}: {problem.text}" for problem in problems)
            raise ConfigError(f"the {self._contract.robot} is not as its contract says:\n{told}")
        return False

    def _within(self, act: Callable[[], None]) -> None:
        """In the thread that spins: it dies of what is made or destroyed beside it."""
        done = self._executor.create_task(act)
        while not done.done() and self._thread.is_alive():
            time.sleep(0.01)

    def _look(self) -> None:
        """Asks the graph who is there."""
        objection = None
        for other in self._claim.unwanted_commanders():
            objection = Objection(COMMANDED, f"{other.told}; end one of them")
            if self._commands and self._claim.gives_way(other):
                self._give_way = Objection(COMMANDED, f"{other.told}, and was first; start anew")
                self._node.get_logger().error(f"{COMMANDED}: {self._give_way.text}")
                self._commands = False
                self._commander.give_up()
        for text in self._commander.unheard():
            objection = Objection("no controller", f"{text}; start or activate it", passes=True)
        self._objection = objection


def _as_mismatch(other: OtherCommander) -> Mismatch:
    return Mismatch(COMMANDED, other.told)
