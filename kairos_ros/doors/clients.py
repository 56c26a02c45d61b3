"""All clients of a process, whatever they speak: who is here, and what reaches whom.

Everything runs in one asyncio loop; pictures are encoded in threads beside it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from kairos_ros.core.errors import KairosError
from kairos_ros.core.exchange import Answer, Request
from kairos_ros.core.server_status import ReceivedStatus, ServerState, ServerStatus
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.robot.control_report import Report

LOG = logging.getLogger(__name__)
LOOK_S = 0.02
"""Between two looks for a topic that a serving node opens."""
ENCODERS = 2
"""Threads that encode pictures."""
MOST_SERVERS = 16
UNNAMED = "robot"
"""Clients without a name are called so, with a number, where no observation map says otherwise."""


class NameTakenError(KairosError):
    """Another client, or too many, are here."""


class Member(Protocol):
    """A robot of the fleet that is no robot node. Times are monotonic nanoseconds."""

    robot: str
    session: str
    peer: str
    """Its address, for people."""
    last_error: str
    counters: Counter[str]
    """What it was answered and refused, and what was dropped."""

    @property
    def dialect(self) -> str: ...

    @property
    def spec(self) -> RobotSpec: ...

    @property
    def cameras(self) -> tuple[str, ...]:
        """Of which its requests bring pictures."""

    @property
    def absent(self) -> tuple[str, ...]:
        """Cameras of the policy that it is without."""

    def heard(self, status: ServerStatus, at_ns: int) -> None:
        """A serving node said how it is."""

    def receive(self, answer: Answer) -> bool:
        """Whether it takes an answer; what it does not take is counted."""

    @property
    def waits(self) -> bool:
        """An exchange of it is open, which looks itself."""

    def look(self, now_ns: int) -> str:
        """Chooses its server for now. Why its task cannot go on; empty: it can."""

    def report(self, now_ns: int) -> Report:
        """For its status, as a robot node tells it."""


class Topics(Protocol):
    """The topics of clients. Called in the loop's thread; must not block."""

    def join(self, client: Member) -> None:
        """Opens its topics, and announces it."""

    def ready(self, client: Member) -> bool:
        """Whether a serving node has opened its ends of them."""

    def send(self, client: Member, request: Request) -> None: ...

    def tell(self, client: Member) -> None:
        """Publishes its status."""

    def leave(self, client: Member) -> None:
        """Says goodbye: its name is free at once."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all clients together, and of each."""

    clients: int = 64
    message_bytes: int = 16_000_000
    idle_s: float = 3600.0
    """A client that asks for nothing for so long is disconnected."""
    answer_s: float = 30.0
    """A request that is not answered by then ends in an error for its client."""


class Clients:
    """Made in the loop that it is used in."""

    def __init__(self, topics: Topics, limits: Limits, unnamed: str = UNNAMED) -> None:
        """unnamed: what clients are called that have no name, with a number."""
        self.limits, self.topics = limits, topics
        self.counters: Counter[str] = Counter()
        """Of connections and messages, of clients that are gone, too."""
        self._left: dict[str, Counter[str]] = {}
        """Dialect -> counters of its clients that are gone."""
        self.encoders = ThreadPoolExecutor(ENCODERS, "encode")
        self._unnamed = unnamed
        self._clients: dict[str, Member] = {}
        self._takes: dict[str, Callable[[Answer], None]] = {}
        self._servers: dict[str, ReceivedStatus] = {}

    @property
    def here(self) -> Mapping[str, Member]:
        """Robot -> its client."""
        return self._clients

    def by_dialect(self) -> dict[str, Counter[str]]:
        """Counters of all clients of each dialect so far, with those that are gone."""
        totals = {dialect: Counter(counts) for dialect, counts in self._left.items()}
        for client in self._clients.values():
            totals.setdefault(client.dialect, Counter()).update(client.counters)
        return totals

    def close(self) -> None:
        for client in list(self._clients.values()):
            self.leave(client)
        self.encoders.shutdown(wait=False, cancel_futures=True)

    def unused_name(self) -> str:
        """For a client that has none."""
        n = 1
        while f"{self._unnamed}_{n}" in self._clients:
            n += 1
        return f"{self._unnamed}_{n}"

    def check_name(self, robot: str) -> None:
        """Raises NameTakenError where a client of this name cannot join now."""
        if robot in self._clients:
            peer = self._clients[robot].peer
            raise NameTakenError(
                f"robot {robot} is connected from {peer}; give this client another name, or end "
                "that one (one that does not answer is disconnected within half a minute)"
            )
        if len(self._clients) >= self.limits.clients:
            raise NameTakenError(
                f"{len(self._clients)} clients are connected, which is the limit; raise "
                "--max-clients"
            )

    def join(self, client: Member, take: Callable[[Answer], None]) -> None:
        """Its name is its own from now on. Raises as `check_name`.

        take: gets the answers that it receives; must not block.
        """
        self.check_name(client.robot)
        self._clients[client.robot] = client
        self._takes[client.robot] = take
        for heard in self._servers.values():
            client.heard(heard.status, heard.at_ns)
        client.look(time.monotonic_ns())
        self.counters["connected"] += 1
        LOG.info(
            "client %s is here, from %s, session %s",
            client.robot,
            client.peer,
            client.session[:8],
        )

    def leave(self, client: Member) -> None:
        if self._clients.get(client.robot) is client:
            del self._clients[client.robot], self._takes[client.robot]
            self._left.setdefault(client.dialect, Counter()).update(client.counters)
            self.counters["disconnected"] += 1
            self.topics.leave(client)
            LOG.info("client %s has left", client.robot)

    async def until_ready(self, client: Member, within_s: float) -> None:
        """Until a serving node has opened its topics; at most for so long."""
        end_s = time.monotonic() + within_s
        while not self.topics.ready(client) and time.monotonic() < end_s:
            await asyncio.sleep(LOOK_S)

    # From ROS, in the loop's thread.

    def heard(self, status: ServerStatus, at_ns: int) -> None:
        """A serving node said how it is."""
        self._servers.pop(status.server, None)
        if status.state is not ServerState.LEAVING and len(self._servers) < MOST_SERVERS:
            self._servers[status.server] = ReceivedStatus(status, at_ns)
        for client in self._clients.values():
            client.heard(status, at_ns)

    def answered(self, robot: str, answer: Answer) -> None:
        """What came on the topic of a robot."""
        client = self._clients.get(robot)
        if client is not None and client.receive(answer):
            self._takes[robot](answer)

    def unreadable(self, robot: str) -> None:
        """An answer that was none."""
        if robot in self._clients:
            self._clients[robot].counters["dropped_malformed"] += 1

    def look(self) -> None:
        """To be called once a second: which server each client asks, and who has paused."""
        now_ns = time.monotonic_ns()
        for client in self._clients.values():
            if not client.waits:
                client.look(now_ns)
            self.topics.tell(client)
