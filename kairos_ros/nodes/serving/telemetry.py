"""What a serving node tells people and tools: `/kairos/fleet_state` and `/diagnostics`."""

import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from rclpy.node import Node

from kairos_ros.core.wire_check import printable
from kairos_ros.host.shared_memory import keep_ports_open
from kairos_ros.msg import FleetState
from kairos_ros.nodes import qos
from kairos_ros.nodes.diagnostics import DiagnosticsPublisher
from kairos_ros.nodes.fleet_namespace import fleet_of
from kairos_ros.nodes.messages.fleet import (
    diagnostics,
    fleet_state,
    plan_diagnostic,
    server_diagnostic,
)
from kairos_ros.nodes.serving.announcement import ServerAnnouncement
from kairos_ros.nodes.serving.plans import Plans
from kairos_ros.serving.dispatcher import Dispatcher

DIAGNOSTICS_PERIOD_S = 1.0
DEAF = (
    "it no longer hears robots of this host: while this node got no CPU, a program that started "
    "took its port in shared memory ({}) for broken and put another one in its place. Restart this "
    "node, and leave it CPU enough (docs/faults.md)"
)


class ServingTelemetry:
    """values: the node's parameters."""

    def __init__(
        self,
        node: Node,
        values: Mapping[str, Any],
        announcement: ServerAnnouncement,
        plans: Plans,
    ) -> None:
        self.counters: Counter[str] = Counter()
        """What was refused or ignored before it came to the dispatcher, since `restart`."""
        self._requests = 0
        self._node, self._values, self._announcement = node, values, announcement
        self._plans = plans
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=11)
        self._diagnosed: Counter[str] = Counter()
        self._diagnosed_s = 0.0
        names = fleet_of(node)
        topic = names.common("fleet_state")
        self._fleet_state = node.create_publisher(FleetState, topic, qos.TELEMETRY)
        self._diagnostics = DiagnosticsPublisher(node, names)

    def restart(self) -> None:
        """Counts from zero, as a new dispatcher does."""
        self.counters.clear()
        self._samples.clear()
        self._requests = 0

    def count_request(self) -> None:
        """A request came for this server."""
        self._requests += 1

    def tell(self, dispatcher: Dispatcher) -> None:
        """The fleet state, now."""
        now_ns = time.monotonic_ns()
        state = fleet_state(now_ns, dispatcher, self.counters)
        state.stamp = self._node.get_clock().now().to_msg()
        state.server = self._announcement.server
        state.active, state.reason = self._announcement.serving, self._announcement.reason
        state.scheduling, state.horizon = self._values["scheduling"], self._values["horizon"]
        state.requests_per_s, state.chunks_per_s = self._per_s(now_ns, dispatcher)
        applied, staged = self._plans.applied, self._plans.staged
        state.plan = applied.identity if applied else ""
        state.staged_plan = staged.identity if staged else ""
        state.plan_reason = printable(self._plans.reason, 500)
        self._fleet_state.publish(state)

    def diagnose_if_due(self, dispatcher: Dispatcher) -> None:
        """The diagnostics, once a second."""
        if time.monotonic() - self._diagnosed_s >= DIAGNOSTICS_PERIOD_S:
            self.diagnose(dispatcher)

    def diagnose(self, dispatcher: Dispatcher) -> None:
        """The diagnostics, now. A server that another one keeps out tells that, and no more: what
        the other one says has the same names."""
        self._diagnosed_s = time.monotonic()
        announcement, values = self._announcement, self._values
        out = announcement.reason if announcement.waits else ""
        lost = ", ".join(map(str, keep_ports_open().lost))
        statuses = diagnostics(
            time.monotonic_ns(),
            dispatcher,
            self.counters,
            self._diagnosed,
            values["warn_queued_s"],
            values["warn_engine_load"],
        )
        applied, staged = self._plans.applied, self._plans.staged
        if applied:
            statuses.append(plan_diagnostic(applied, staged, self._plans.reason))
        self._diagnosed = dispatcher.counters + self.counters
        who = server_diagnostic(
            out or (DEAF.format(lost) if lost else ""),
            announcement.waiting(),
            values["robots"],
            stands_by=announcement.stands_by,
        )
        self._diagnostics.publish([who] if out else [who, *statuses])

    def _per_s(self, now_ns: int, dispatcher: Dispatcher) -> tuple[float, float]:
        """Requests and chunks per second over about the last two seconds."""
        computed = sum(slot.requests for slot in dispatcher.engines.values())
        self._samples.append((now_ns, self._requests, computed))
        then_ns, requests, chunks = self._samples[0]
        seconds = max(now_ns - then_ns, 1) / 1e9
        return (self._requests - requests) / seconds, (computed - chunks) / seconds
