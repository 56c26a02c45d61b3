"""The WebSocket server of all clients: who may connect, and which dialect a connection speaks.

A client that offers the subprotocol of robots without ROS speaks that; every other one is taken for
openpi's client, where there is an observation map for it.
"""

import asyncio
import http
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from socket import socket

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request as Handshake
from websockets.http11 import Response
from websockets.typing import Subprotocol

from kairos_ros.doors.access import Access, AccessDeniedError
from kairos_ros.doors.clients import Clients, NameTakenError
from kairos_ros.doors.dialogue import SEND_S, Dialogue
from kairos_ros.doors.grpc_refusal import PREFACE, TEXT, GrpcRefusal
from kairos_ros.doors.metrics import metrics
from kairos_ros.doors.native.robot_client import RobotClient
from kairos_ros.doors.native.robot_dialogue import RobotDialogue
from kairos_ros.doors.observation_map import ObservationMap
from kairos_ros.doors.openpi.openpi_dialogue import OpenpiDialogue
from kairos_ros.telemetry.exposition import CONTENT_TYPE
from kairos_ros.transport.robot_link.messages import SUBPROTOCOL

LOG = logging.getLogger(__name__)
HANDSHAKE_S = 5.0
PING_S, PONG_S = 10.0, 20.0
"""A peer that does not answer a ping in this time is gone."""
CLOSE_S = 2.0
QUEUED = 2
"""Messages that may wait in this process; those behind wait in the client's socket."""
NO_MAP = (
    "without an observation map, only LeRobot policies of type kairos are served; start kairos "
    "doors with a MAP for openpi's clients"
)


class Connection(ServerConnection):
    """Knows where to count, since refusals come before there is a client."""

    robot: str = ""
    _heard: bool = False
    _grpc: GrpcRefusal | None = None


class DoorsServer:
    """Serves `clients`; `open` it in their loop."""

    def __init__(
        self, clients: Clients, read: ObservationMap | None, access: Access, most_sockets: int
    ) -> None:
        """read: of openpi's clients; None: there are none.
        most_sockets: connections at a time, those included that have not said anything."""
        self._clients, self._map = clients, read
        self._access, self._most = access, most_sockets
        self._dialects = (RobotClient.dialect, *([read.dialect] if read else []))
        self._sockets = 0
        self._grpc_s = -math.inf

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
            select_subprotocol=_subprotocol,
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

            def data_received(self, data: bytes) -> None:
                if not self._heard and data.startswith(PREFACE[:14]):
                    self._grpc = GrpcRefusal()
                    owner._note_grpc(self)
                self._heard = True
                if self._grpc is None:
                    super().data_received(data)
                    return
                said, over = self._grpc.answer(data)
                self.transport.write(said)
                if over:
                    self.transport.close()

            def connection_lost(self, exc: Exception | None) -> None:
                owner._sockets -= 1
                super().connection_lost(exc)

        return Counted

    def _note_grpc(self, connection: ServerConnection) -> None:
        """Such clients come again and again: one in ten seconds is told of."""
        self.counters["refused_clients"] += 1
        now_s = time.monotonic()
        if now_s - self._grpc_s > 10.0:
            self._grpc_s = now_s
            LOG.warning("refused a client from %s: %s", _peer(connection), TEXT)

    def _admit(self, connection: ServerConnection, handshake: Handshake) -> Response | None:
        """None: it may be a client."""
        path = handshake.path.partition("?")[0]
        if path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        if path == "/metrics" and "Upgrade" not in handshake.headers:
            return self._scraped(connection, handshake)
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
        offered = ",".join(handshake.headers.get_all("Sec-WebSocket-Protocol")).split(",")
        if self._map is None and SUBPROTOCOL not in map(str.strip, offered):
            return self._refuse(connection, http.HTTPStatus.BAD_REQUEST, NO_MAP)
        connection.robot = named
        return None

    def _scraped(self, connection: ServerConnection, asked: Handshake) -> Response:
        try:
            self._access.check_scraper(asked.headers.get("Authorization", ""))
        except AccessDeniedError as error:
            return self._refuse(connection, http.HTTPStatus.UNAUTHORIZED, str(error))
        page = metrics(self._clients, self._sockets, self._dialects)
        response = connection.respond(http.HTTPStatus.OK, page)
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = CONTENT_TYPE
        return response

    def _refuse(self, connection: ServerConnection, status: http.HTTPStatus, text: str) -> Response:
        self.counters["refused_clients"] += 1
        LOG.warning("refused a client from %s: %s", _peer(connection), text)
        return connection.respond(status, text + "\n")

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, Connection)
        robot, peer = connection.robot or self._clients.unused_name(), _peer(connection)
        dialogue: Dialogue
        if connection.subprotocol == SUBPROTOCOL:
            dialogue = RobotDialogue(connection, self._clients, robot, peer)
        else:
            assert self._map is not None  # `_admit` has refused the others
            dialogue = OpenpiDialogue(connection, self._clients, self._map, robot, peer)
        try:
            self._clients.join(dialogue.client, dialogue.take)
        except NameTakenError as error:  # two came at once
            await connection.close(CloseCode.TRY_AGAIN_LATER, _short(str(error)))
            return
        try:
            await dialogue.run()
        except ConnectionClosed:
            pass
        except TimeoutError:
            self.counters["slow_readers"] += 1
            LOG.warning("client %s did not read for %g s", robot, SEND_S)
            connection.transport.abort()
        finally:
            self._clients.leave(dialogue.client)


def _subprotocol(
    connection: ServerConnection, offered: Sequence[Subprotocol]
) -> Subprotocol | None:
    return Subprotocol(SUBPROTOCOL) if SUBPROTOCOL in offered else None


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
