"""The connection of one robot to `kairos doors`, and the thread that reads and writes it.

One thread: OpenSSL allows no two to read and write the same connection at the same time.
"""

import asyncio
import contextlib
import ipaddress
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
)
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
        self._loop = asyncio.new_event_loop()
        self._outbox: asyncio.Queue[Message | None] = asyncio.Queue(MOST_UNSENT)
        self._sending_since_s: float | None = None
        self._socket: ClientConnection | None = None
        self.robot = self.session = ""
        welcomed: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run,
            args=(f"{server.rstrip('/')}/{robot}", token, welcomed),
            name="doors",
            daemon=True,
        )
        self._thread.start()
        try:
            welcomed.result()
        finally:
            welcomed.cancel()  # a Ctrl-C meanwhile: nobody wants it any more

    def send(self, message: Message) -> None:
        """Never blocks. Does nothing on a connection that has ended, and ends one that takes
        nothing."""
        if not self.ended:
            self._in_thread(self._put, message)

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
        self._in_thread(self._leave)
        self._thread.join(2 * CLOSE_S)

    def _in_thread(self, call: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(call, *args)

    def _run(self, url: str, token: str, welcomed: Future[None]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._live(url, token, welcomed))
            except Exception as error:
                self._end(f"the connection to {self.where} failed: {type(error).__name__}: {error}")
                if welcomed.done():
                    raise
                welcomed.set_exception(error)

    async def _live(self, url: str, token: str, welcomed: Future[None]) -> None:
        async with self._opened(url, token) as self._socket:
            self.robot, self.session = await self._welcome(self._socket)
            if not welcomed.set_running_or_notify_cancel():
                return
            welcomed.set_result(None)
            reading = asyncio.create_task(self._read(self._socket))
            try:
                await self._write(self._socket)
            finally:
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading

    @asynccontextmanager
    async def _opened(self, url: str, token: str) -> AsyncIterator[ClientConnection]:
        """Raises ConnectionError."""
        if token and url.startswith("ws://") and not _is_this_host(url):
            raise ConnectionError(
                f"a token is not sent over {url}, which others can read; use wss:// and "
                "--tls-cert and --tls-key of kairos doors"
            )
        try:
            opened = await connect(
                url,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers={"Authorization": f"Bearer {token}"} if token else None,
                compression=None,
                proxy=None,
                open_timeout=OPEN_S,
                close_timeout=CLOSE_S,
                max_size=MOST_BYTES,
            )
        except InvalidStatus as error:
            body = (error.response.body or b"").decode(errors="replace").strip()
            raise ConnectionError(
                f"{url} refuses this robot (HTTP {error.response.status_code}): {body[:500]}"
            ) from None
        except (OSError, ValueError, InvalidHandshake, InvalidURI) as error:
            raise ConnectionError(
                f"no connection to {url} ({type(error).__name__}: {error}); start `kairos doors` "
                "there, or set --policy.server to the URL that it prints"
            ) from None
        try:
            if opened.subprotocol != SUBPROTOCOL:
                raise ConnectionError(
                    f"{url} does not speak {SUBPROTOCOL}: it is no `kairos doors`, or an older one"
                )
            yield opened
        finally:
            await opened.close()

    async def _welcome(self, socket: ClientConnection) -> tuple[str, str]:
        try:
            async with asyncio.timeout(OPEN_S):
                data = await socket.recv()
            return read_welcome(unpack(_binary(data), LIMITS))
        except (ConnectionClosed, TimeoutError, WireError) as error:
            raise ConnectionError(f"{self.where} does not welcome this robot: {error}") from None

    async def _read(self, socket: ClientConnection) -> None:
        try:
            while True:
                self._take(await socket.recv())
        except ConnectionClosed as error:
            self._end(f"{self.where} has closed the connection: {error}")
        finally:
            self._leave()

    async def _write(self, socket: ClientConnection) -> None:
        try:
            while (message := await self._outbox.get()) is not None:
                self._sending_since_s = time.monotonic()
                await socket.send(pack(message))
                self._sending_since_s = None
        except ConnectionClosed as error:
            self._end(f"{self.where} has closed the connection: {error}")

    def _put(self, message: Message) -> None:
        since_s = self._sending_since_s
        stuck = since_s is not None and time.monotonic() - since_s > SEND_S
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            stuck = True
        if stuck:
            self._end(f"{self.where} takes nothing that is sent to it")
            self._cut()

    def _leave(self) -> None:
        """What waits to be sent is sent before."""
        with contextlib.suppress(asyncio.QueueFull):
            self._outbox.put_nowait(None)
        self._loop.call_later(CLOSE_S, self._cut)

    def _cut(self) -> None:
        """Ends what waits for a peer that takes nothing."""
        if self._socket is not None:
            self._socket.transport.abort()

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
