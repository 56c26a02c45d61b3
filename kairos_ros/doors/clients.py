"""All clients of a process: who is here, and the exchange of one observation for one chunk.

Everything runs in one asyncio loop; pictures are encoded in threads beside it.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from kairos_ros.core.errors import KairosError
from kairos_ros.core.exchange import Actions, Answer, Refusal, Request
from kairos_ros.core.server_status import ReceivedStatus, ServerState, ServerStatus
from kairos_ros.core.wire_check import printable
from kairos_ros.doors.client import FINAL, Client
from kairos_ros.doors.observation import Seen, seen_of, sizes_of
from kairos_ros.doors.observation_map import ObservationMap

LOG = logging.getLogger(__name__)
REPEAT_S, FIRST_REPEAT_S = 1.0, 0.2
"""Silence after which a request is sent again; it doubles. Of a new client it is shorter: the
serving node may not have found its reader yet, so that the first answer gets lost."""
LONGEST_SILENCE_S = 4.0
LOOK_S = 0.02
"""Between two looks for a server, or for a topic that it opens."""
ENCODERS = 2
"""Threads that encode pictures."""
MOST_SERVERS = 16


class NotServedError(KairosError):
    """A client gets no chunk; the reason is for it."""


class NameTakenError(KairosError):
    """Another client, or too many, are here."""


class Topics(Protocol):
    """The topics of clients. Called in the loop's thread; must not block."""

    def join(self, client: Client) -> None:
        """Opens its topics, and announces it."""

    def ready(self, client: Client) -> bool:
        """Whether a serving node has opened its ends of them."""

    def send(self, client: Client, request: Request) -> None: ...

    def tell(self, client: Client) -> None:
        """Publishes its status."""

    def leave(self, client: Client) -> None:
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

    def __init__(self, read: ObservationMap, topics: Topics, limits: Limits) -> None:
        self.map, self.limits = read, limits
        self.counters: Counter[str] = Counter()
        """Of connections and messages, of clients that are gone, too."""
        self._topics = topics
        self._clients: dict[str, Client] = {}
        self._answers: dict[str, asyncio.Queue[Answer]] = {}
        self._servers: dict[str, ReceivedStatus] = {}
        self._encoders = ThreadPoolExecutor(ENCODERS, "encode")

    @property
    def here(self) -> Mapping[str, Client]:
        """Robot -> its client."""
        return self._clients

    def close(self) -> None:
        for client in list(self._clients.values()):
            self.leave(client)
        self._encoders.shutdown(wait=False, cancel_futures=True)

    def unused_name(self) -> str:
        """For a client that has none."""
        n = 1
        while f"{self.map.robot}_{n}" in self._clients:
            n += 1
        return f"{self.map.robot}_{n}"

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

    def join(self, robot: str, peer: str) -> Client:
        """Raises as `check_name`."""
        self.check_name(robot)
        client = Client(robot, self.map, peer)
        now_ns = time.monotonic_ns()
        for heard in self._servers.values():
            client.binding.heard(heard.status, heard.at_ns)
        client.look(now_ns)
        self._clients[robot] = client
        self._answers[robot] = asyncio.Queue(maxsize=16)
        self.counters["connected"] += 1
        self._topics.join(client)
        LOG.info("client %s is here, from %s, session %s", robot, peer, client.session[:8])
        return client

    def leave(self, client: Client) -> None:
        if self._clients.get(client.robot) is client:
            del self._clients[client.robot], self._answers[client.robot]
            self._topics.leave(client)
            LOG.info("client %s has left", client.robot)

    # From ROS, in the loop's thread.

    def heard(self, status: ServerStatus, at_ns: int) -> None:
        """A serving node said how it is."""
        self._servers.pop(status.server, None)
        if status.state is not ServerState.LEAVING and len(self._servers) < MOST_SERVERS:
            self._servers[status.server] = ReceivedStatus(status, at_ns)
        for client in self._clients.values():
            client.binding.heard(status, at_ns)

    def answered(self, robot: str, answer: Answer) -> None:
        """What came on the topic of a robot."""
        client = self._clients.get(robot)
        if client is not None and client.receive(answer):
            with contextlib.suppress(asyncio.QueueFull):
                self._answers[robot].put_nowait(answer)

    def unreadable(self, robot: str) -> None:
        """An answer that was none."""
        if robot in self._clients:
            self._clients[robot].counters["dropped_malformed"] += 1

    def look(self) -> None:
        """To be called once a second: which server each client asks, and who has paused."""
        now_ns = time.monotonic_ns()
        for client in self._clients.values():
            if not client.waits:  # else the exchange looks itself
                client.look(now_ns)
            self._topics.tell(client)

    # For a connection.

    async def until_ready(self, client: Client, within_s: float) -> None:
        """Until a serving node has opened its topics; at most for so long."""
        end_s = time.monotonic() + within_s
        while not self._topics.ready(client) and time.monotonic() < end_s:
            await asyncio.sleep(LOOK_S)

    async def chunk(self, client: Client, message: Mapping[Any, Any], came_ns: int) -> Actions:
        """What the policy answers to one observation.

        Raises WireError for an observation that does not fit the map, NotServedError where no chunk
        comes in time. After either the client may go on with another observation.
        """
        end_ns = came_ns + round(self.limits.answer_s * 1e9)
        try:
            await self._until_served(client, end_ns)
            seen = await self._seen(client, message)
            self._note_unused(client, seen)
            return await self._exchange(client, seen, came_ns, end_ns)
        except KairosError as error:
            client.failed(printable(str(error), 300))
            self._topics.tell(client)
            raise

    def replied(self, client: Client) -> None:
        """Its chunk was sent to it."""
        client.replied(time.monotonic_ns())
        self.counters["chunks"] += 1
        self._topics.tell(client)

    async def _until_served(self, client: Client, end_ns: int) -> None:
        """Until there is a server, with topics of this client, that it may ask by now."""
        while True:
            now_ns = time.monotonic_ns()
            outcome = client.look(now_ns)
            if outcome:
                raise NotServedError(outcome)
            if client.server is not None:
                if client.misfit:
                    raise NotServedError(client.misfit)
                if self._topics.ready(client) and now_ns >= client.soonest_ns:
                    return
            if now_ns > end_ns:
                waits = f"{self.limits.answer_s:g} s"
                if client.server is None:
                    raise NotServedError(f"no server for {waits}: {client.binding.why_none()}")
                raise NotServedError(f"{client.server} has not opened its topics for {waits}")
            await asyncio.sleep(LOOK_S)

    async def _seen(self, client: Client, message: Mapping[Any, Any]) -> Seen:
        policy = client.binding.policy
        sizes = sizes_of(policy, client.map.images) if policy else {}
        if not client.map.images:
            return seen_of(message, client.map, sizes)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._encoders, seen_of, message, client.map, sizes)

    def _note_unused(self, client: Client, seen: Seen) -> None:
        if seen.unused and not client.counters["unused_keys"]:
            LOG.warning(
                "client %s sends %s, which its observation map does not name",
                client.robot,
                ", ".join(seen.unused[:10]),
            )
        client.counters["unused_keys"] += len(seen.unused)

    async def _exchange(self, client: Client, seen: Seen, came_ns: int, end_ns: int) -> Actions:
        answers = self._answers[client.robot]
        while not answers.empty():
            answers.get_nowait()
        request = client.begin(seen.prompt, seen.observation, came_ns, time.monotonic_ns())
        self._topics.tell(client)
        silence_s, reason = REPEAT_S if client.counters["chunks"] else FIRST_REPEAT_S, ""
        while True:
            self._topics.send(client, request)
            left_s = (end_ns - time.monotonic_ns()) / 1e9
            try:
                answer = await asyncio.wait_for(answers.get(), min(silence_s, max(left_s, 0.0)))
            except TimeoutError:
                client.counters["silences"] += 1
                LOG.info("client %s asks again after %g s of silence", client.robot, silence_s)
                silence_s = min(2 * silence_s, LONGEST_SILENCE_S)
                answer = None
            wait_s = 0.0
            if answer is not None:
                if isinstance(answer.body, Actions):
                    return answer.body
                if isinstance(answer.body, Refusal):
                    reason, wait_s = answer.body.reason, answer.body.retry_after_ns / 1e9
                    client.counters[f"refused_{answer.body.code.name.lower()}"] += 1
                    if not wait_s or answer.body.code in FINAL:
                        raise NotServedError(f"the server refused the request: {reason}")
            now_ns = time.monotonic_ns()
            if now_ns + wait_s * 1e9 >= end_ns:
                why = f": {reason}" if reason else f"; the server is {client.server}"
                raise NotServedError(f"no chunk within {self.limits.answer_s:g} s{why}")
            if wait_s:
                await asyncio.sleep(wait_s)
            outcome = client.look(time.monotonic_ns())
            if outcome:
                raise NotServedError(outcome)
            request = client.repeat(time.monotonic_ns())
