"""A WebSocket server that openpi's own client takes for openpi's own server.

One connection is one client. It gets the metadata first; then each binary message is an observation
and is answered by a chunk, or by a text, which the client raises as an error
(openpi_client/websocket_client_policy.py). One client's messages are answered one after another.
"""

import asyncio
import http
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request as Handshake
from websockets.http11 import Response

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Actions
from kairos_ros.core.wire_check import TooLargeError, printable
from kairos_ros.doors.access import Access, AccessDeniedError
from kairos_ros.doors.client import Client
from kairos_ros.doors.clients import Clients, NameTakenError, NotServedError
from kairos_ros.doors.openpi.packing import pack, unpack

LOG = logging.getLogger(__name__)
HANDSHAKE_S = 5.0
PING_S, PONG_S = 10.0, 20.0
"""A peer that does not answer a ping in this time is gone."""
SEND_S = 10.0
"""A client that does not read what it is sent for so long is disconnected."""
CLOSE_S = 2.0
READY_S = 2.0
"""A client gets the metadata when it can be served, at the latest after so long."""
MOST_UNREADABLE = 10
"""Messages in a row that are no observation, before their sender is disconnected."""
QUEUED = 2
"""Messages that may wait in this process; those behind wait in the client's socket."""


class Connection(ServerConnection):
    """Knows where to count, since refusals come before there is a client."""

    robot: str = ""


class OpenpiServer:
    """Serves `clients`; `open` it in their loop."""

    def __init__(self, clients: Clients, access: Access, most_sockets: int) -> None:
        """most_sockets: connections at a time, those included that have not said anything."""
        self._clients, self._access, self._most = clients, access, most_sockets
        self._sockets = 0

    @property
    def counters(self) -> Counter[str]:
        return self._clients.counters

    @asynccontextmanager
    async def open(self, bound: socket) -> AsyncIterator[Server]:
        """Serves on a socket that is bound."""
        async with serve(
            self._handle,
            sock=bound,
            ssl=self._access.tls,
            create_connection=self._connections(),
            process_request=self._admit,
            compression=None,
            max_size=self._clients.limits.message_bytes,
            max_queue=QUEUED,
            open_timeout=HANDSHAKE_S,
            ping_interval=PING_S,
            ping_timeout=PONG_S,
            close_timeout=CLOSE_S,
            server_header="kairos_ros",
            logger=_quiet(),
            backlog=1024,
        ) as server:
            yield server

    def _connections(self) -> type[Connection]:
        """Connections that are counted from their first byte on."""
        owner = self

        class Counted(Connection):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                owner._sockets += 1
                super().connection_made(transport)
                if owner._sockets > owner._most:
                    owner.counters["refused_connections"] += 1
                    self.transport.abort()

            def connection_lost(self, exc: Exception | None) -> None:
                owner._sockets -= 1
                super().connection_lost(exc)

        return Counted

    def _admit(self, connection: ServerConnection, handshake: Handshake) -> Response | None:
        """None: it may be a client."""
        if handshake.path.partition("?")[0] == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        assert isinstance(connection, Connection)
        try:
            named = self._access.robot_of(
                handshake.path, handshake.headers.get("Authorization", "")
            )
            robot = named or self._clients.unused_name()
            self._clients.check_name(robot)
        except AccessDeniedError as error:
            return self._refuse(connection, http.HTTPStatus.UNAUTHORIZED, str(error))
        except NameTakenError as error:
            return self._refuse(connection, http.HTTPStatus.CONFLICT, str(error))
        connection.robot = named
        return None

    def _refuse(self, connection: ServerConnection, status: http.HTTPStatus, text: str) -> Response:
        self.counters["refused_clients"] += 1
        LOG.warning("refused a client from %s: %s", _peer(connection), text)
        return connection.respond(status, text + "\n")

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, Connection)
        try:
            robot = connection.robot or self._clients.unused_name()
            client = self._clients.join(robot, _peer(connection))
        except NameTakenError as error:  # two came at once
            await connection.close(CloseCode.TRY_AGAIN_LATER, _short(str(error)))
            return
        try:
            await self._serve(connection, client)
        except ConnectionClosed:
            pass
        except TimeoutError:
            self.counters["slow_readers"] += 1
            LOG.warning("client %s did not read for %g s", client.robot, SEND_S)
            connection.transport.abort()
        finally:
            self._clients.leave(client)

    async def _serve(self, connection: ServerConnection, client: Client) -> None:
        """Until the connection ends. Raises TimeoutError for a client that does not read."""
        await self._clients.until_ready(client, READY_S)
        await self._send(connection, pack(_metadata(client)))
        idle_s = self._clients.limits.idle_s
        before_ms: float | None = None
        unreadable = 0
        while True:
            try:
                data = await asyncio.wait_for(connection.recv(), idle_s)
            except TimeoutError:
                self.counters["idle_clients"] += 1
                await connection.close(CloseCode.GOING_AWAY, f"no request for {idle_s:g} s")
                return
            came_ns = time.monotonic_ns()
            try:
                if isinstance(data, str):
                    raise WireError("a text; an observation is binary msgpack")
                message = unpack(data)
                answered = await self._while_connected(
                    connection, self._clients.chunk(client, message, came_ns)
                )
            except WireError as error:
                unreadable += 1
                self._count_unreadable(client, error)
                await self._send(connection, printable(f"bad observation: {error}", 900))
                if unreadable >= MOST_UNREADABLE:
                    text = f"{unreadable} messages in a row were no observations"
                    await connection.close(CloseCode.POLICY_VIOLATION, text)
                    return
                continue
            except NotServedError as error:
                LOG.warning("client %s gets no chunk: %s", client.robot, error)
                await self._send(connection, printable(f"not served: {error}", 900))
                continue
            unreadable = 0
            reply = pack(_reply(answered, (time.monotonic_ns() - came_ns) / 1e6, before_ms))
            await self._send(connection, reply)
            self._clients.replied(client)
            before_ms = (time.monotonic_ns() - came_ns) / 1e6

    async def _while_connected(self, connection: ServerConnection, work: Any) -> Actions:
        """Nothing is done for a client that has gone. Raises ConnectionClosed then."""
        task = asyncio.ensure_future(work)
        closed = asyncio.ensure_future(connection.wait_closed())
        try:
            await asyncio.wait({task, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.counters["gone_while_waiting"] += 1
                raise ConnectionClosed(None, None)
            result: Actions = task.result()
            return result
        finally:
            task.cancel()
            closed.cancel()

    async def _send(self, connection: ServerConnection, data: bytes | str) -> None:
        await asyncio.wait_for(connection.send(data), SEND_S)

    def _count_unreadable(self, client: Client, error: WireError) -> None:
        kind = "too_large" if isinstance(error, TooLargeError) else "malformed"
        client.counters[f"refused_{kind}"] += 1
        self.counters[f"refused_{kind}"] += 1
        client.last_error = printable(str(error), 300)
        if client.counters[f"refused_{kind}"] == 1:
            LOG.warning("client %s sends what cannot be used: %s", client.robot, error)


def _metadata(client: Client) -> dict[str, Any]:
    """What `get_server_metadata` of a client gives."""
    policy, read = client.binding.policy, client.map
    shapes: dict[str, Any] = {part.key: [part.size] for part in read.state}
    shapes |= {picture.key: picture.layout for picture in read.images.values()}
    return {
        "server": "kairos_ros",
        "robot": client.robot,
        "session": client.session,
        "policy": policy.name if policy else "",
        "action_horizon": client.chunk_size,
        "action_dim": read.action_dim,
        "control_rate_hz": read.control_rate_hz,
        "observation": shapes,
        "prompt": read.prompt,
        **read.metadata,
    }


def _reply(answered: Actions, infer_ms: float, before_ms: float | None) -> dict[str, Any]:
    """As openpi's server replies, and how the chunk came about. Arrays have one row per action:
    the client's chunk broker takes one row of each."""
    timing: dict[str, Any] = {
        "infer_ms": infer_ms,
        "queued_ms": answered.queued_ns / 1e6,
        "compute_ms": answered.compute_ns / 1e6,
    }
    if before_ms is not None:
        timing["prev_total_ms"] = before_ms
    return {
        "actions": answered.actions,
        "server_timing": timing,
        "policy_timing": {"infer_ms": answered.compute_ns / 1e6},
        "kairos": {
            "horizon": len(answered.actions),
            "chunk_size": answered.chunk_size,
            "horizon_reason": answered.horizon_reason,
            "reason": answered.reason,
            "batch_size": answered.batch_size,
            "tier": answered.tier,
            "engine": answered.engine,
            "policy": answered.policy,
        },
    }


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if address else "a peer that is gone"


def _short(text: str) -> str:
    """At most 123 bytes, as reasons of WebSocket closes are."""
    return text.encode()[:120].decode(errors="ignore")


def _quiet() -> logging.Logger:
    """The library's own log has a line per connection, and a traceback per bad handshake."""
    log = logging.getLogger("websockets.server")
    log.setLevel(logging.CRITICAL)
    return log
