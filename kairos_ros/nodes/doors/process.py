"""What `kairos doors` runs: clients in an asyncio loop, their topics in a node beside it."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from rclpy.impl.rcutils_logger import RcutilsLogger

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.core.name_patterns import matches
from kairos_ros.core.server_status import ServerState, ServerStatus
from kairos_ros.doors.access import Access
from kairos_ros.doors.clients import UNNAMED, Clients, Limits
from kairos_ros.doors.groot.groot_server import GrootServer
from kairos_ros.doors.observation_map import GROOT, ObservationMap
from kairos_ros.doors.server import DoorsServer
from kairos_ros.nodes.clients.standalone_node import StandaloneNode
from kairos_ros.nodes.diagnostics import DiagnosticsPublisher
from kairos_ros.nodes.doors.diagnostics import diagnostics
from kairos_ros.nodes.doors.topics import ClientTopics
from kairos_ros.nodes.process import log_by
from kairos_ros.nodes.throttle import Throttle

LOG = logging.getLogger("kairos_ros.doors")
TELL_AFTER_S = 2.0
"""It says what it waits for."""


class ThrottledLog(logging.Handler):
    """Hands what clients cause to a node's logger, at a rate that an operator can read."""

    def __init__(self, logger: RcutilsLogger) -> None:
        super().__init__()
        self._throttle = Throttle(logger, burst=20, every_s=1.0)

    def emit(self, record: logging.LogRecord) -> None:
        warns = record.levelno >= logging.WARNING
        (self._throttle.warning if warns else self._throttle.info)(
            str(record.msg), self.format(record)
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """What is served, and how."""

    path: Path
    """Of the map."""
    read: ObservationMap | None
    """None: robots without ROS are served only, which need no map."""
    access: Access
    limits: Limits
    names: FleetNames
    most_sockets: int


class DoorsProcess:
    """`run` it in a loop of its own. Raises ConfigError for a map that does not fit the policy."""

    def __init__(self, setup: Setup, bound: socket, say: Callable[[str], None]) -> None:
        """bound: the socket of clients, which does not listen yet. say: tells its user."""
        self._setup, self._bound, self._say = setup, bound, say
        self._servers: dict[str, ServerStatus] = {}
        self._port = bound.getsockname()[1]
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until SIGINT or SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        standalone = StandaloneNode(f"doors_{self._port}", names=self._setup.names)
        log_by(standalone.node)
        LOG.handlers, LOG.propagate = [ThrottledLog(standalone.node.get_logger())], False
        topics = ClientTopics(
            standalone,
            self._setup.names,
            loop,
            heard=self._heard,
            answered=lambda robot, answer: self.clients.answered(robot, answer),
            unreadable=lambda robot: self.clients.unreadable(robot),
        )
        read = self._setup.read
        self.clients = Clients(topics, self._setup.limits, read.robot if read else UNNAMED)
        told = DiagnosticsPublisher(standalone.node, self._setup.names)
        standalone.spin_in_thread()
        try:
            if read is not None and not await self._fitting_server(read):
                return
            access, most = self._setup.access, self._setup.most_sockets
            server: GrootServer | DoorsServer
            if read is not None and read.dialect == GROOT:
                served, server = "groot clients", GrootServer(self.clients, read, access, most)
            else:
                openpi = f"{read.dialect} clients and " if read else ""
                served = f"{openpi}LeRobot's policy type kairos"
                server = DoorsServer(self.clients, read, access, most)
            async with server.open(self._bound):
                self._say(f"doors: serves {served} (Ctrl-C ends it)")
                await self._live(standalone, told)
        finally:
            self.clients.close()
            await asyncio.sleep(0.1)  # the node's thread takes over what has left
            topics.say_goodbye()
            standalone.close()

    async def _live(self, standalone: StandaloneNode, told: DiagnosticsPublisher) -> None:
        """Heartbeats and diagnostics. Raises ConfigError when ROS is lost."""
        while not await self._stopped(1.0):
            if standalone.failure:
                raise ConfigError(f"the node has ended ({standalone.failure}); start it again")
            self.clients.look()
            known, most = self.clients, self._setup.limits.clients
            now_ns = time.monotonic_ns()
            told.publish(diagnostics(self._port, known.here, known.counters, most, now_ns))

    async def _fitting_server(self, read: ObservationMap) -> bool:
        """Waits for a serving node, and checks the map against its policy. False: interrupted."""
        began_s, told = time.monotonic(), False
        while not await self._stopped(0.1):
            for status in self._servers.values():
                if self._check(status, read):
                    return True
            if not told and time.monotonic() - began_s > TELL_AFTER_S:
                known = "; ".join(f"{s} is {s.state.name.lower()}" for s in self._servers.values())
                self._say(f"doors: waits for an active serving node ({known or 'none is heard'})")
                told = True
        return False

    def _check(self, status: ServerStatus, read: ObservationMap) -> bool:
        """Whether a server may serve clients of the map. Raises ConfigError where it cannot."""
        if status.state is not ServerState.ACTIVE:
            return False
        names = [*self._setup.access.tokens] or [f"{read.robot}_1"]
        strange = [name for name in names if not matches(status.robots, name)]
        if strange:
            LOG.warning("%s does not serve robots called %s", status, ", ".join(strange[:5]))
            if len(strange) == len(names):
                return False
        policy = status.interface_of(read.policy)
        if policy is None:
            if not read.policy or read.policy in (one.name for one in status.policies):
                return False  # no engine of it was up yet
            served = ", ".join(one.name for one in status.policies) or status.policy
            raise ConfigError(
                f"{self._setup.path}: policy {read.policy!r} is none of {status}; it serves "
                f"{served or 'none yet'}"
            )
        sizes = {p.interface.name: p.chunk_size for p in status.policies if p.interface}
        chunk_size = sizes.get(policy.name, status.chunk_size)
        if misfit := read.misfit(policy, chunk_size):
            raise ConfigError(f"{self._setup.path} does not fit policy {policy.name}: {misfit}")
        if policy.observations > 1:
            LOG.warning(
                "policy %s reads %d observations and a client sends one per chunk: it is "
                "repeated, so that the policy sees no motion",
                policy.name,
                policy.observations,
            )
        cameras = f", cameras {', '.join(read.images)}" if read.images else ""
        self._say(
            f"doors: {self._setup.path.name} fits policy {policy.name} of {status}: chunks of "
            f"{chunk_size} actions of {policy.action_dim} values{cameras}"
        )
        return True

    def _heard(self, status: ServerStatus, at_ns: int) -> None:
        self._servers[status.server] = status
        if status.state is ServerState.LEAVING:
            del self._servers[status.server]
        self.clients.heard(status, at_ns)

    async def _stopped(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), within_s)
        return self._stop.is_set()
