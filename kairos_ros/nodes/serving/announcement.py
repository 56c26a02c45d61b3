"""Says who serves, and hears who else wants to: `/kairos/server_status` of one serving node."""

import os
import socket
import time
from collections.abc import Callable
from typing import Any, cast

from rclpy.duration import Duration
from rclpy.node import Node

from kairos_ros.core.errors import ConfigError, WireError
from kairos_ros.core.name_patterns import check_patterns
from kairos_ros.core.server_status import (
    HEARTBEATS,
    LEAST_STANDBY_NS,
    SILENT_NS,
    ServedPolicy,
    ServerState,
    ServerStatus,
)
from kairos_ros.msg import ServerStatus as ServerStatusMessage
from kairos_ros.nodes import qos
from kairos_ros.nodes.bounded import subscribe
from kairos_ros.nodes.fleet_namespace import fleet_of
from kairos_ros.nodes.messages.server import described, server_from, server_message
from kairos_ros.serving.other_servers import OtherServers
from kairos_ros.transport.messages import EngineDescription

LISTEN_NS = 1_500_000_000
"""From its start a server listens for so long before it serves: nobody is served twice while DDS
still finds who is there. Loading an engine takes longer."""
STANDBY_LISTENS_NS = 10_000_000_000
"""A standby listens longer: the server that it is to stand by may be started with it."""
LISTEN_LONGER_NS = 1_500_000_000
"""For so long at most it listens on while a publisher of the topic has been found and not heard."""
WANTS = (ServerState.STARTING, ServerState.ACTIVE)
"""Phases in which a server is about to serve, or does."""


class ServerAnnouncement:
    """Told on every change and each second, for as long as `update` is called often.

    Raises ConfigError for a pattern of `robots` that matches no robot, and a standby that would
    take over too soon or too late.
    """

    def __init__(
        self, node: Node, server: str, robots: list[str], standby_after_s: float = 0.0
    ) -> None:
        """standby_after_s: not 0: this one is a standby, as in ServerStatus.msg."""
        check_patterns(robots)
        self._standby_after_ns = round(standby_after_s * 1e9)
        if self._standby_after_ns and not (LEAST_STANDBY_NS <= self._standby_after_ns <= SILENT_NS):
            raise ConfigError(
                f"parameter standby_after_s is {standby_after_s:g}; a standby takes over "
                f"{LEAST_STANDBY_NS / 1e9:g} to {SILENT_NS / 1e9:g} s after it heard the other "
                "server; 0: this one is no standby"
            )
        self.phase = ServerState.INACTIVE
        """What the lifecycle says: STARTING, ACTIVE or INACTIVE."""
        self.plan = ""
        """By which plan robots are served, for the log."""
        self.owner: ServerStatus | None = None
        """The server that the robots are left to; None where they are this one's to serve."""
        self._node = node
        self._robots = tuple(robots)
        self.server = server
        self._others = OtherServers(server, robots, self._standby_after_ns)
        self._active_since_ns: int | None = None
        self._began_ns = time.monotonic_ns()
        listens_ns = STANDBY_LISTENS_NS if self._standby_after_ns else LISTEN_NS
        self._listens_until_ns = self._began_ns + listens_ns
        self._listens = True
        self._was: tuple[ServerState | None, bool] = (None, False)
        """State and whether it served, when that was last told."""
        self._told: tuple[object, ...] | None = None
        self._told_ns = 0
        topic = fleet_of(node).common("server_status")
        self._publisher = node.create_publisher(ServerStatusMessage, topic, qos.ANNOUNCEMENT)
        self._subscription = subscribe(
            node, ServerStatusMessage, topic, self._on_status, qos.ROSTER, refused=self._ignore
        )

    def serve(self, robots: list[str]) -> None:
        """Other robots, from now on. Only while inactive. Raises ConfigError as at construction."""
        check_patterns(robots)
        self._robots = tuple(robots)
        self._others = OtherServers(self.server, robots, self._standby_after_ns)

    @property
    def clear(self) -> bool:
        """No other server has the robots, as far as can be known by now."""
        return self.owner is None and not self._listens

    @property
    def waits(self) -> bool:
        """It is to serve robots that another server has."""
        return self.owner is not None and self.phase in WANTS

    @property
    def stands_by(self) -> bool:
        """It waits, and somebody wanted one of the two to."""
        wanted = self._standby_after_ns or (self.owner and self.owner.standby_after_ns)
        return self.waits and bool(wanted)

    @property
    def serving(self) -> bool:
        """Activated, and no other server has the robots."""
        return self.phase is ServerState.ACTIVE and self.clear

    @property
    def reason(self) -> str:
        """Why no robot is served, for people; empty while robots are."""
        if self.owner is not None and self.stands_by:
            loads = "" if self.phase is ServerState.ACTIVE else "the engine is loading; then it "
            return (
                f"{loads}stands by: {self.owner} has {_named(self.owner.robots)}; this server "
                f"takes over {self.owner.silent_after_ns / 1e9:.1f} s after it last heard of it"
            )
        if self.owner is not None and self.waits:
            return (
                f"{self.owner} serves {_named(self.owner.robots)} already; stop one of the two, or "
                "give each its own robots with parameter robots"
            )
        if self.phase is ServerState.STARTING:
            return "the engine is loading"
        if self.phase is ServerState.ACTIVE:
            return "looking for other servers" if self._listens else ""
        return "not activated"

    def waiting(self) -> list[ServerStatus]:
        """Other servers that want the same robots and serve nobody for it."""
        return self._others.waiting(time.monotonic_ns())

    def stood_still(self, for_ns: int) -> None:
        """The node could hear nobody for so long. Where a standby may have taken over meanwhile, it
        listens as at its start before it serves again."""
        self.take()
        now_ns = time.monotonic_ns()
        if self.serving and self._others.may_have_taken_over(now_ns - self._told_ns):
            self._listens, self._listens_until_ns = True, now_ns + LISTEN_NS
        self._others.stood_still(now_ns, for_ns)

    def take(self) -> None:
        """Hears what came, where no executor spins."""
        read = cast(Callable[[bytes], None], self._subscription.callback)  # see `subscribe`
        with self._subscription.handle:
            while came := self._subscription.handle.take_message(ServerStatusMessage, True):
                read(came[0])

    def update(
        self, engine: EngineDescription | None, policies: tuple[ServedPolicy, ...] = ()
    ) -> bool:
        """Tells what is new. Whether `clear` has changed.

        engine: what is served to robots that name no policy; None before an engine was up.
        policies: all that are served, where there are several.
        """
        now_ns = time.monotonic_ns()
        before, was_clear = self.owner, self.clear
        self.owner = self._others.before(now_ns, self._active_since_ns)
        if self.stands_by:  # it has found what it is to stand by, which may leave at once
            earliest_ns = self._began_ns + LISTEN_NS
            self._listens_until_ns = min(self._listens_until_ns, max(earliest_ns, now_ns))
        self._listens = self._listens and self._listens_on(now_ns)
        self._log(before)
        if not self.serving:
            self._active_since_ns = None
        elif self._active_since_ns is None:
            self._active_since_ns = now_ns
        silent_after_ns = self._others.silent_after_ns
        told = self._state, self.reason, engine, policies, silent_after_ns
        if told != self._told or now_ns - self._told_ns >= silent_after_ns / HEARTBEATS:
            self._told, self._told_ns = told, now_ns
            self._publisher.publish(server_message(self._status(now_ns, engine, policies)))
        return self.clear != was_clear

    def _listens_on(self, now_ns: int) -> bool:
        late_ns = now_ns - self._listens_until_ns
        if late_ns < 0:
            return True
        others = self._node.count_publishers(self._publisher.topic_name) - 1
        return late_ns < LISTEN_LONGER_NS and others > self._others.known

    def leave(self) -> None:
        """Says that this server is gone; robots are free at once."""
        left = ServerStatus(self.server, ServerState.LEAVING, **self._who)
        self._publisher.publish(server_message(left))
        self._publisher.wait_for_all_acked(Duration(seconds=1))

    @property
    def _state(self) -> ServerState:
        if self.waits and not self.stands_by:
            return ServerState.CONFLICT
        if self.waits and self.phase is ServerState.ACTIVE:
            return ServerState.STANDBY
        looking = self.phase is ServerState.ACTIVE and self._listens
        return ServerState.STARTING if looking else self.phase

    @property
    def _who(self) -> dict[str, Any]:
        return {
            "node": self._node.get_fully_qualified_name(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "robots": self._robots,
        }

    def _status(
        self, now_ns: int, engine: EngineDescription | None, policies: tuple[ServedPolicy, ...]
    ) -> ServerStatus:
        since_ns = now_ns if self._active_since_ns is None else self._active_since_ns
        return ServerStatus(
            self.server,
            self._state,
            reason=self.reason,
            active_for_ns=now_ns - since_ns,
            silent_after_ns=self._others.silent_after_ns,
            standby_after_ns=self._standby_after_ns,
            policies=policies,
            **self._who,
            **(described(engine) if engine else {}),
        )

    def _on_status(self, message: ServerStatusMessage) -> None:
        try:
            self._others.heard(server_from(message), time.monotonic_ns())
        except WireError as error:
            self._ignore(error)

    def _ignore(self, error: WireError, raw: bytes = b"") -> None:
        self._node.get_logger().warning(f"ignored {error}", throttle_duration_sec=5.0)

    def _log(self, before: ServerStatus | None) -> None:
        logger, (was, was_serving) = self._node.get_logger(), self._was
        self._was = self._state, self.serving
        if self._state is ServerState.STANDBY and was is not self._state:
            logger.info(self.reason)
        if self._state is ServerState.CONFLICT and was is not self._state:
            logger.error(f"serves no robot: {self.reason}")
        if was in (ServerState.STANDBY, ServerState.CONFLICT) and self.owner is None:
            logger.warning(f"{before} does not serve these robots any more")
        if self.serving and not was_serving:
            logger.info(f"active: robots are served {self.plan}".rstrip())


def _named(patterns: tuple[str, ...]) -> str:
    return f"robots {', '.join(patterns)}" if patterns else "every robot"
