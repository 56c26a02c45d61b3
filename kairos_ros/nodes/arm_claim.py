"""One node commands an arm: who else publishes on its command topics, or is its actions' client.

A node looks around before it begins to command, and once more right after; whoever finds another
one then steps back, so that a node that commands already is never disturbed by one that begins.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rclpy.node import Node

from kairos_ros.nodes.driver_topics import Channel, Controller, clients_of, commanders

LINK = "driver_link_"
"""Begins the names of nodes that claim arms in this way."""
LOOK_AROUND_S = 1.0
"""Before the first claim: for nodes to find each other."""
CLAIM_S = 0.5
"""After a claim, for two that begin at once to see each other."""
GRACE_S = 1.5
"""One that begins may be seen for so long before it steps back."""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another node that commands the arm."""

    node: str
    """Full name."""
    what: str
    """Topic or action."""

    @property
    def told(self) -> str:
        return f"{self.node} commands {self.what}, too"


class ArmClaim:
    """Who else commands the arm whose channels and controllers a contract names."""

    def __init__(
        self, node: Node, channels: Sequence[Channel], controllers: Sequence[Controller]
    ) -> None:
        self.channels = [channel for channel in channels if ".commands." in channel.field]
        """Command topics."""
        self._node, self._controllers = node, controllers
        self._since_s = time.monotonic()
        self._seen_s: dict[Rival, float] = {}

    def looked_around(self) -> bool:
        return time.monotonic() - self._since_s > LOOK_AROUND_S

    def rivals(self) -> list[Rival]:
        """Everybody else who commands the arm now."""
        publishers = [
            Rival(f"{end.node_namespace.rstrip('/')}/{end.node_name}", channel.topic)
            for channel in self.channels
            for end in commanders(self._node, channel)
        ]
        return publishers + [
            Rival(name, controller.name)
            for controller in self._controllers
            for name in clients_of(self._node, controller)
        ]

    def intruders(self) -> list[Rival]:
        """Rivals that must not be there while the arm is ours: those that do not step back."""
        now_s = time.monotonic()
        rivals = self.rivals()
        seen_s = {rival: self._seen_s.get(rival, now_s) for rival in rivals}
        self._seen_s = seen_s
        return [one for one, since_s in seen_s.items() if not _may_step_back(one, now_s - since_s)]

    def comes_first(self) -> bool:
        """Of nodes that began at once, the publisher with the lowest id tries again first, or the
        client of an action with the first name."""
        if self.channels:
            ends = self._node.get_publishers_info_by_topic(self.channels[0].topic)
            first = min(ends, key=lambda end: end.endpoint_gid)
            return first.node_name == self._node.get_name()
        own = self._node.get_fully_qualified_name()
        return own < min(rival.node for rival in self.rivals())


def _may_step_back(rival: Rival, for_s: float) -> bool:
    """Whether one that has been there `for_s` claims arms as we do, and may be about to leave."""
    return rival.node.rpartition("/")[2].startswith(LINK) and for_s < GRACE_S
