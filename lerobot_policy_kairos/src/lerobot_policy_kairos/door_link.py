"""The connection of one robot to `kairos doors`, and the threads that read and write it."""

import contextlib
import ipaddress
import logging
import queue
import threading
import time
from contextlib import ExitStack
from socket import SHUT_RDWR, socket
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Answer
from kairos_ros.core.server_status import ReceivedStatus, ServerState
from kairos_ros.transport.frames import FrameLimits, Message
from kairos_ros.transport.robot_link.messages import (
    SUBPROTOCOL,
    read_answer,
    read_error,
    read_welcome,
)
from kairos_ros.transport.robot_link.one_frame import pack, unpack
from kairos_ros.transport.robot_link.server_message import read_server

LOG = logging.getLogger(__name__)
MOST_BYTES = 16_000_000
"""Of one message."""
LIMITS = FrameLimits(message_bytes=MOST_BYTES, array_bytes=MOST_BYTES, frames=16, dims=2)
MOST_ANSWERS = 16
"""Kept until the robot looks; older ones are of no use."""
MOST_SERVERS = 16
OPEN_S = 10.0
SEND_S = 5.0
"""Of a server that has not taken a message by then, nothing more is expected."""
MOST_UNSENT = 32
"""Messages that wait to be sent."""
CLOSE_S = 2.0


class DoorLink:
    """Thread safe. Raises ConnectionError where there is no server, or it refuses this robot."""

    def __init__(self, server: str, robot: str, token: str, arrived: threading.Event) -> None:
        """server: URL of `kairos doors`. robot: may be empty. token: may be empty.
        arrived: is set whenever something has come, or the connection has ended."""
        self.where = server
        self.ended = ""
        """Why nothing comes any more; empty while the connection lives."""
        self._arrived = arrived
        self._lock = threading.Lock()
        self._answers: list[Answer] = []
        self._servers: dict[str, ReceivedStatus] = {}
        self._news: dict[str, ReceivedStatus] = {}
        self._unreadable = 0
        self._outbox: queue.Queue[Message | None] = queue.Queue(MOST_UNSENT)
        self._sending_since_s: float | None = None
        self._stack = ExitStack()
        self._socket = self._open(f"{server.rstrip('/')}/{robot}", token)
        try:
            self.robot, self.session = self._welcome()
        except BaseException:
            self._stack.close()
            raise
        self._reader = threading.Thread(target=self._read, name="from doors", daemon=True)
        self._writer = threading.Thread(target=self._write, name="to doors", daemon=True)
        self._reader.start()
        self._writer.start()

    def send(self, message: Message) -> None:
        """Never blocks. Does nothing on a connection that has ended, and ends one that takes
        nothing."""
        if self.ended:
            return
        since_s = self._sending_since_s
        stuck = since_s is not None and time.monotonic() - since_s > SEND_S
        try:
            self._outbox.put_nowait(message)
        except queue.Full:
            stuck = True
        if stuck:
            self._end(f"{self.where} takes nothing that is sent to it")
            self._cut()

    def servers(self) -> list[ReceivedStatus]:
        """What every serving node said last; those that have left are not there."""
        with self._lock:
            return list(self._servers.values())

    def take_news(self) -> list[ReceivedStatus]:
        """The same of those that said something since the last time, or have left."""
        with self._lock:
            taken, self._news = list(self._news.values()), {}
        return taken

    def take_answers(self) -> list[Answer]:
        """Those that have come since the last time, oldest first."""
        with self._lock:
            taken, self._answers = self._answers, []
        return taken

    def take_unreadable(self) -> int:
        """How many messages could not be read since the last time."""
        with self._lock:
            taken, self._unreadable = self._unreadable, 0
        return taken

    def close(self) -> None:
        """The robot leaves the fleet."""
        with contextlib.suppress(queue.Full):
            self._outbox.put_nowait(None)
        self._writer.join(CLOSE_S)
        if self._writer.is_alive():
            self._cut()
        self._stack.close()
        self._reader.join(CLOSE_S)

    def _open(self, url: str, token: str) -> ClientConnection:
        if token and url.startswith("ws://") and not _is_this_host(url):
            raise ConnectionError(
                f"a token is not sent over {url}, which others can read; use wss:// and "
                "--tls-cert and --tls-key of kairos doors"
            )
        try:
            opened: ClientConnection = self._stack.enter_context(
                connect(
                    url,
                    subprotocols=[Subprotocol(SUBPROTOCOL)],
                    additional_headers={"Authorization": f"Bearer {token}"} if token else None,
                    compression=None,
                    proxy=None,
                    open_timeout=OPEN_S,
                    close_timeout=CLOSE_S,
                    max_size=MOST_BYTES,
                )
            )
        except InvalidStatus as error:
            body = (error.response.body or b"").decode(errors="replace").strip()
            raise ConnectionError(
                f"{url} refuses this robot (HTTP {error.response.status_code}): {body[:500]}"
            ) from None
        except (OSError, InvalidHandshake) as error:
            raise ConnectionError(
                f"no connection to {url} ({type(error).__name__}: {error}); start `kairos doors` "
                "there, or set --policy.server to the URL that it prints"
            ) from None
        if opened.subprotocol != SUBPROTOCOL:
            self._stack.close()
            raise ConnectionError(
                f"{url} does not speak {SUBPROTOCOL}: it is no `kairos doors`, or an older one"
            )
        return opened

    def _welcome(self) -> tuple[str, str]:
        try:
            data = self._socket.recv(timeout=OPEN_S)
            return read_welcome(unpack(_binary(data), LIMITS))
        except (ConnectionClosed, TimeoutError, WireError) as error:
            raise ConnectionError(f"{self.where} does not welcome this robot: {error}") from None

    def _read(self) -> None:
        try:
            while True:
                self._take(self._socket.recv())
        except ConnectionClosed as error:
            self._end(f"{self.where} has closed the connection: {error}")
        except Exception as error:
            self._end(f"reading from {self.where} failed: {type(error).__name__}: {error}")
            raise

    def _write(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self._sending_since_s = time.monotonic()
                self._socket.send(pack(message))
                self._sending_since_s = None
        except ConnectionClosed as error:
            self._end(f"{self.where} has closed the connection: {error}")

    def _cut(self) -> None:
        """Wakes threads that wait for a peer which does nothing. Not `SSLSocket.shutdown`, which
        is not meant for other threads."""
        with contextlib.suppress(OSError):
            socket.shutdown(self._socket.socket, SHUT_RDWR)

    def _take(self, data: bytes | str) -> None:
        now_ns = time.monotonic_ns()
        try:
            message = unpack(_binary(data), LIMITS)
            with self._lock:
                match message.kind:
                    case "answer":
                        self._answers.append(read_answer(message, self.robot, self.session))
                        del self._answers[:-MOST_ANSWERS]
                    case "server":
                        heard = ReceivedStatus(read_server(message), now_ns)
                        _keep(self._news, heard)
                        _keep(self._servers, heard)
                        if heard.status.state is ServerState.LEAVING:
                            del self._servers[heard.status.server]
                    case "error":
                        self.ended = f"{self.where} cannot use what was sent: {read_error(message)}"
                    case _:
                        pass  # of a newer server
        except WireError as error:
            LOG.warning("dropped a message of %s: %s", self.where, error)
            with self._lock:
                self._unreadable += 1
        self._arrived.set()

    def _end(self, why: str) -> None:
        with self._lock:
            self.ended = self.ended or why
        self._arrived.set()


def _keep(servers: dict[str, ReceivedStatus], heard: ReceivedStatus) -> None:
    servers.pop(heard.status.server, None)
    servers[heard.status.server] = heard
    if len(servers) > MOST_SERVERS:
        del servers[next(iter(servers))]


def _binary(data: bytes | str) -> bytes:
    """Raises WireError."""
    if isinstance(data, str):
        raise WireError("a text; messages are binary")
    return data


def _is_this_host(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
