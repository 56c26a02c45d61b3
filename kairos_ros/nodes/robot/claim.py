"""One node commands an arm: who else publishes on its command topics, or is its actions' client.

A node looks around before it begins to command, and once more right after; whoever finds another
one then steps back. On a busy host two may not find each other in time: their names tell which one
began first, and the other one gives way whenever it sees that.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from rclpy.node import Node

from kairos_ros.nodes.robot.drivers.topics import ActionController, Channel, clients_of, commanders

LINK = "driver_link_"
"""Begins the names of nodes that claim arms in this way."""
UNNAMED = "_NODE_NAME_UNKNOWN_"
"""What the middleware calls a node before it has heard its name."""
LOOK_AROUND_S = 3.0
"""Before the first claim: for nodes to find each other."""
CLAIM_S = 0.5
"""After a claim, for two that begin at once to see each other."""
GRACE_S = 10.0
"""One that began later, or has no name yet, may be seen for so long before it gives way."""


@dataclass(frozen=True, slots=True)
class OtherCommander:
    """Another node that commands the arm."""

    node: str
    """Full name."""
    what: str
    """Topic or action."""

    @property
    def named(self) -> bool:
        """Who publishes is found before what its node is called."""
        return UNNAMED not in self.node

    @property
    def told(self) -> str:
        who = self.node if self.named else "a node whose name is not known yet"
        return f"{who} commands {self.what}, too"


class ArmClaim:
    """Who else commands the arm whose channels and controllers a contract names."""

    def __init__(
        self, node: Node, channels: Sequence[Channel], controllers: Sequence[ActionController]
    ) -> None:
        self.channels = [channel for channel in channels if ".commands." in channel.field]
        """Command topics."""
        self._node, self._controllers = node, controllers
        self._since_s = time.monotonic()
        self._seen_s: dict[OtherCommander, float] = {}

    def looked_around(self, for_s: float) -> bool:
        return time.monotonic() - self._since_s > for_s

    def other_commanders(self) -> list[OtherCommander]:
        """Everybody else who commands the arm now."""
        publishers = [
            OtherCommander(f"{end.node_namespace.rstrip('/')}/{end.node_name}", channel.topic)
            for channel in self.channels
            for end in commanders(self._node, channel)
        ]
        return publishers + [
            OtherCommander(name, controller.name)
            for controller in self._controllers
            for name in clients_of(self._node, controller)
        ]

    def unwanted_commanders(self) -> list[OtherCommander]:
        """Those that must not be there while the arm is ours: all but those about to give way."""
        now_s = time.monotonic()
        seen_s = {other: self._seen_s.get(other, now_s) for other in self.other_commanders()}
        self._seen_s = seen_s
        return [
            other
            for other, since_s in seen_s.items()
            if (other.named and not self._began_later(other)) or now_s - since_s > GRACE_S
        ]

    def gives_way(self, other: OtherCommander) -> bool:
        """Whether another node claims arms as we do, and was first."""
        return _base(other).startswith(LINK) and not self._began_later(other)

    def comes_first(self) -> bool:
        """Of nodes that began at once."""
        return all(self._began_later(other) for other in self.other_commanders())

    def _began_later(self, other: OtherCommander) -> bool:
        return _base(other).startswith(LINK) and _base(other) > self._node.get_name()


def link_name() -> str:
    """Of a node that claims arms: they are in the order of their beginnings."""
    return f"{LINK}{time.time_ns():016x}_{uuid.uuid4().hex[:4]}"


def _base(other: OtherCommander) -> str:
    return other.node.rpartition("/")[2]
