"""The topics by which the programs that run one planned fleet on several hosts find each other.

`fleet_plan` has the fleet that runs, latched, from the first host; `host_status` the status of
every host, once a second. Both are JSON in a std_msgs/String. `/diagnostics` tells people.
"""

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from std_msgs.msg import String

from kairos_ros.core.errors import WireError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.core.placement.host_status import HostStatus, read_host_status
from kairos_ros.nodes import qos
from kairos_ros.nodes.bounded import FLEET_BYTES, subscribe
from kairos_ros.nodes.diagnostics import DiagnosticsPublisher

MOST_HOSTS = 1000
"""More sessions than that are not remembered."""


class HostTopics:
    """Of a node that somebody else spins."""

    def __init__(self, node: Node, names: FleetNames) -> None:
        self._statuses: dict[str, tuple[HostStatus, float]] = {}
        """Session -> its newest status, and when it came."""
        self.plan = ""
        """The newest plan of the first host, as it came; empty: none was heard."""
        self.refused: Counter[str] = Counter()
        """What came and was no message of ours."""
        status, plan = names.common("host_status"), names.common("fleet_plan")
        self._status_writer = node.create_publisher(String, status, qos.EVENTS)
        self._diagnostics = DiagnosticsPublisher(node, names)
        self._plan_writer: Any = None
        self._open_plan = partial(node.create_publisher, String, plan, qos.ANNOUNCEMENT)
        subscribe(node, String, status, self._on_status, qos.EVENTS, refused=self._refuse)
        subscribe(
            node, String, plan, self._on_plan, qos.ANNOUNCEMENT,
            most_bytes=FLEET_BYTES, refused=self._refuse,
        )  # fmt: skip

    def tell_status(self, status: HostStatus) -> None:
        self._status_writer.publish(String(data=status.text))

    def tell_plan(self, text: str) -> None:
        """Whoever comes later hears it, too."""
        self._plan_writer = self._plan_writer or self._open_plan()
        self._plan_writer.publish(String(data=text))

    def heard(self) -> list[tuple[HostStatus, float]]:
        """The newest status of every session, and how many seconds ago it came."""
        now_s = time.monotonic()
        return [(status, now_s - at_s) for status, at_s in self._statuses.values()]

    def diagnose(self, wrong: Mapping[str, str]) -> None:
        """wrong: host -> what is wrong with it; empty: nothing."""
        self._diagnostics.publish(
            DiagnosticStatus(
                level=DiagnosticStatus.ERROR if why else DiagnosticStatus.OK,
                name=f"kairos fleet: host {host}",
                message=why or "runs its part of the plan",
                hardware_id=host,
            )
            for host, why in wrong.items()
        )

    def _on_status(self, message: String) -> None:
        try:
            status = read_host_status(message.data)
        except WireError:
            self.refused["host_status"] += 1
            return
        self._statuses[status.session] = status, time.monotonic()
        while len(self._statuses) > MOST_HOSTS:
            del self._statuses[min(self._statuses, key=lambda one: self._statuses[one][1])]

    def _on_plan(self, message: String) -> None:
        self.plan = message.data

    def _refuse(self, error: WireError, raw: bytes) -> None:
        self.refused["unreadable"] += 1
