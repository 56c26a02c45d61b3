"""The server of Isaac-GR00T's clients: their connections, and what becomes of each."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

from kairos_ros.doors.access import Access
from kairos_ros.doors.clients import Clients
from kairos_ros.doors.dialogue import SEND_S
from kairos_ros.doors.groot.groot_dialogue import Answered, GrootDialogue
from kairos_ros.doors.groot.http_page import BEGIN, END, answer
from kairos_ros.doors.groot.zmtp import EndedError, Link, Message
from kairos_ros.doors.metrics import metrics
from kairos_ros.doors.observation_map import ObservationMap

LOG = logging.getLogger(__name__)
HANDSHAKE_S = 5.0
BUFFER_BYTES = 1 << 20
"""Of a client that are read before they are wanted."""
PROBES = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 2}
"""A host that does not answer is gone after 20 s; its client's process is not asked."""


class GrootServer:
    """Serves `clients`; `open` it in their loop."""

    def __init__(
        self, clients: Clients, read: ObservationMap, access: Access, most_sockets: int
    ) -> None:
        """most_sockets: connections at a time, those included that have not said anything."""
        self._clients, self._map, self._access = clients, read, access
        self._most = most_sockets
        self._most_greeted = 2 * clients.limits.clients
        """Connections that may send messages: one that a client has left is noted a bit later."""
        self._open: set[asyncio.Task[None]] = set()
        self._greeted = 0

    @property
    def counters(self) -> Counter[str]:
        return self._clients.counters

    @asynccontextmanager
    async def open(self, bound: socket.socket) -> AsyncIterator[asyncio.Server]:
        """Serves on a socket that is bound."""
        server = await asyncio.start_server(
            self._begin, sock=bound, limit=BUFFER_BYTES, backlog=1024
        )
        try:
            yield server
        finally:
            server.close()
            for one in self._open:
                one.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._most:
            self.counters["refused_connections"] += 1
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer, self._clients.limits.message_bytes)
        peer = _peer(writer)
        greeted = False
        try:
            _watch(writer.get_extra_info("socket"))
            async with asyncio.timeout(HANDSHAKE_S):
                first = await link.begin()
                if first.startswith(BEGIN):
                    await self._tell(first, reader, writer, peer)
                    return
                if self._greeted >= self._most_greeted:
                    # not greeted, it comes again with the request that it has not sent yet
                    self.counters["refused_connections"] += 1
                    raise EndedError(f"{self._greeted} clients are connected; raise --max-clients")
                await link.greet(first)
            greeted = True
            self._greeted += 1
            await self._answer_all(link, peer)
        except TimeoutError:
            self.counters["handshakes_not_made"] += 1
        except EndedError as ended:
            if str(ended):
                self.counters["ended_connections"] += 1
                LOG.warning("ended the connection of a client from %s: %s", peer, ended)
        finally:
            self._greeted -= greeted
            await link.end()

    async def _tell(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> None:
        """Over HTTP, to whoever asks how the process is. first: bytes of the request."""
        dialects = (self._map.dialect,)
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            status, said = answer(
                first + await reader.readuntil(END),
                self._access,
                lambda: metrics(self._clients, len(self._open), dialects),
            )
            if status is HTTPStatus.UNAUTHORIZED:
                self.counters["refused_clients"] += 1
                LOG.warning("refused %s, who asks for /metrics without the token", peer)
            writer.write(said)
            await writer.drain()

    async def _answer_all(self, link: Link, peer: str) -> None:
        """Until the connection ends; one message is looked ahead, to note the end at once.

        A connection is never ended between two requests: one that the client is about to send
        would be lost, and most versions of it wait for the answer for ever.
        """
        dialogue = GrootDialogue(self._clients, self._map, self._access, peer)
        coming = asyncio.ensure_future(link.receive())
        try:
            while True:
                await asyncio.wait({coming}, timeout=self._clients.limits.idle_s)
                if not coming.done():
                    dialogue.leave()
                message = await coming
                coming = asyncio.ensure_future(link.receive())
                answered = await self._while_connected(dialogue.answer(message), coming)
                await self._send(link, message, answered)
        finally:
            dialogue.leave()
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _while_connected(
        self, work: Coroutine[Any, Any, Answered], coming: asyncio.Future[Message]
    ) -> Answered:
        """Nothing is done for a client that has gone. Raises EndedError then."""
        task = asyncio.ensure_future(work)
        try:
            both: set[asyncio.Future[Any]] = {task, coming}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and coming.exception() is not None:
                self.counters["gone_while_waiting"] += 1
                coming.result()
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send(self, link: Link, message: Message, answered: Answered) -> None:
        try:
            async with asyncio.timeout(SEND_S):
                await link.send(message, answered.reply)
        except TimeoutError:
            self.counters["slow_readers"] += 1
            raise EndedError(f"it did not read for {SEND_S:g} s") from None
        for robot in answered.served:
            robot.replied()


def _watch(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _peer(writer: asyncio.StreamWriter) -> str:
    address = writer.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if address else "a peer that is gone"
