"""Who may connect: ZeroMQ's authentication (ZAP, RFC 27) against a folder of public keys.

One per ZeroMQ context, with a thread of its own. A key that is not in the folder gets no answer at
all: its handshake ends in silence. The folder is looked at four times a second; a key that left it
loses its live connections then, by shutting their sockets down, whatever libzmq thinks of them.
"""

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import zmq
from zmq.utils import z85

from kairos_ros.core.errors import ConfigError
from kairos_ros.transport.key_file import PublicKey, Role, fingerprint
from kairos_ros.transport.key_folder import KeyFolder, read_keys

log = logging.getLogger(__name__)

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"kairos"
LOOK_S = 0.25
"""How often the folder of clients is looked at; a revoked key is cut off within this and a turn."""
LOG_EVERY_S = 60.0
"""A refused key is logged once in so long, however often it comes."""
MAX_REFUSED_KEYS = 1024
"""Refused keys that are remembered to keep the log short."""
MAX_EVENTS = 256
"""Connection events that are taken in before others get their turn."""

EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(frozen=True, slots=True)
class HandshakeCounts:
    """What happened to those who connected, since the start."""

    connections: int = 0
    """TCP connections accepted, whoever it was."""
    handshakes: int = 0
    """Those that proved to hold an allowed key; the others got nothing."""
    unknown: int = 0
    """Handshakes with a key that was never allowed."""
    revoked: int = 0
    """Handshakes with a key that was allowed once."""
    broken: int = 0
    """Handshakes that are not CURVE with this server's key."""
    cut: int = 0
    """Live connections that were ended because their key is no longer allowed."""
    turned_away: int = 0
    """Messages of such connections that were dropped unread."""


@dataclass(slots=True)
class _Connection:
    peer: Any
    """Address and port: proves that a file descriptor is still the same connection."""
    user: str | None = None
    """Z85 key; None until it has said something."""


@dataclass(slots=True)
class _Refusals:
    logged_at: float
    since: int = field(default=0)


class ZapAuthenticator:
    """Lets clients of a key folder connect to the sockets that it guards.

    `only` narrows that to one name: for a socket that is meant for one peer. Close the sockets
    first, then the authenticator, then the context.
    """

    def __init__(self, context: zmq.Context, keys: KeyFolder, only: str = "") -> None:
        self._context = context
        self._keys = keys
        self._only = only
        self._lock = threading.Lock()
        self._counts = HandshakeCounts()
        self._connections: dict[int, _Connection] = {}
        self._refusals: dict[str, _Refusals] = {}
        self._seen: object = None
        self._allowed: dict[str, PublicKey] = {}
        self._look()
        if not self._allowed:
            log.warning("no client key in %s: nobody can connect yet", keys.clients)
        self._zap = context.socket(zmq.REP)
        self._zap.setsockopt(zmq.LINGER, 0)
        try:
            self._zap.bind(ZAP_ENDPOINT)
        except zmq.ZMQError as error:
            self._zap.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise ConfigError("this ZeroMQ context has an authenticator already") from error
        self._control = context.socket(zmq.PAIR)
        self._control.bind(f"inproc://zap-control-{id(self)}")
        self._guarded = 0
        self._thread = threading.Thread(target=self._run, name="zap-authenticator", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> HandshakeCounts:
        return self._counts

    def guard(self, sock: zmq.Socket) -> None:
        """Watches the connections of a socket that has just been bound."""
        self._guarded += 1
        endpoint = f"inproc://zap-control-{id(self)}-{self._guarded}"
        sock.monitor(endpoint, EVENTS)
        self._control.send_string(endpoint)

    def allows(self, user: str, fd: int) -> bool:
        """Whether a message of this key may be read. If not, its connection ends.

        `user` and `fd` are what libzmq says of the message (User-Id, file descriptor).
        """
        allowed = user in self._allowed
        known = self._connections.get(fd)
        if known is None or known.user != user:
            with self._lock:
                self._connections[fd] = _Connection(_peer(fd), user)
        if not allowed:
            self._count(turned_away=1)
            self._cut({user})
        return allowed

    def name_of(self, user: str) -> str:
        """The name of an allowed key, for logs and tables; else its fingerprint."""
        key = self._allowed.get(user)
        return key.name if key else fingerprint(z85.decode(user.encode())) if user else "nobody"

    def close(self) -> None:
        """Nobody else comes in. The guarded sockets must be closed already."""
        if self._thread.is_alive():
            self._control.send(b"")
            self._thread.join()
        self._control.close(linger=0)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception:
            log.exception("the authenticator failed: nobody is let in any more")
            gone, self._allowed = self._allowed, {}
            self._cut(set(gone))
        finally:
            self._zap.close(linger=0)

    def _watch(self) -> None:
        control = self._context.socket(zmq.PAIR)
        control.connect(f"inproc://zap-control-{id(self)}")
        monitors: list[zmq.Socket] = []
        poller = zmq.Poller()
        poller.register(control, zmq.POLLIN)
        poller.register(self._zap, zmq.POLLIN)
        next_look = time.monotonic() + LOOK_S
        try:
            while True:
                ready = dict(poller.poll(int(1000 * LOOK_S)))
                if time.monotonic() >= next_look:
                    self._look()
                    next_look = time.monotonic() + LOOK_S
                for monitor in [m for m in monitors if m in ready]:
                    if not self._drain(monitor):
                        poller.unregister(monitor)
                        monitors.remove(monitor)
                        monitor.close(linger=0)
                if self._zap in ready:
                    self._zap.send_multipart(self._verdict(self._zap.recv_multipart()))
                if control in ready:
                    endpoint = control.recv_string()
                    if not endpoint:
                        return
                    monitors.append(self._context.socket(zmq.PAIR))
                    monitors[-1].connect(endpoint)
                    poller.register(monitors[-1], zmq.POLLIN)
        finally:
            for own in (control, *monitors):
                own.close(linger=0)

    def _verdict(self, request: list[bytes]) -> list[bytes]:
        """A ZAP reply. 300 ends a handshake in silence, where 400 would send the peer an error."""
        request_id = request[1] if len(request) > 1 else b""
        if len(request) != 7 or request[5] != b"CURVE" or len(request[6]) != 32:
            return [b"1.0", request_id, b"300", b"", b"", b""]
        user = z85.encode(request[6]).decode()
        if user not in self._allowed:
            self._refused(user, fingerprint(request[6]), request[3].decode(errors="replace"))
            return [b"1.0", request_id, b"300", b"", b"", b""]
        log.info("%s connects from %s", self._about(user), request[3].decode(errors="replace"))
        return [b"1.0", request_id, b"200", b"", user.encode(), b""]

    def _refused(self, user: str, short: str, address: str) -> None:
        gone = {key.public.decode(): key for key in self._keys.revoked_keys()}.get(user)
        self._count(**{"revoked" if gone else "unknown": 1})
        now = time.monotonic()
        refusals = self._refusals.get(short)
        if refusals is not None and now - refusals.logged_at < LOG_EVERY_S:
            refusals.since += 1
            return
        log.warning(
            "refused %s from %s, %d times since it was last logged",
            f"revoked key {gone.name} {short}" if gone else f"unknown key {short}",
            address,
            refusals.since + 1 if refusals else 1,
        )
        if len(self._refusals) >= MAX_REFUSED_KEYS:
            self._refusals.clear()
        self._refusals[short] = _Refusals(now)

    def _drain(self, monitor: zmq.Socket) -> bool:
        """Takes in what a monitor has to say, many at once: unknown keys may come in crowds."""
        from zmq.utils.monitor import parse_monitor_message  # loads asyncio

        for _ in range(MAX_EVENTS):
            try:
                event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
            if not self._event(event):
                return False
        return True

    def _event(self, event: Mapping[str, Any]) -> bool:
        """Takes a monitor's event in; False when the monitor ends."""
        fd = event["value"]
        match event["event"]:
            case zmq.EVENT_MONITOR_STOPPED:
                return False
            case zmq.EVENT_ACCEPTED:
                self._count(connections=1)
                peer = _peer(fd)
                with self._lock:
                    known = self._connections.get(fd)
                    if peer is not None and (known is None or known.peer != peer):
                        self._connections[fd] = _Connection(peer)
            case zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED:
                with self._lock:
                    self._connections.pop(fd, None)
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._count(handshakes=1)
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._count(broken=1)
        return True

    def _look(self) -> None:
        """Reads the folder of clients again where something changed in it."""
        try:
            seen = sorted(
                (entry.name, entry.stat().st_mtime_ns, entry.inode())
                for entry in os.scandir(self._keys.clients)
            )
        except OSError:  # not there, or changing right now
            seen = []
        if seen == self._seen:
            return
        self._seen = seen
        allowed = {
            key.public.decode(): key
            for _, key in read_keys(self._keys.clients)
            if key.role is Role.CLIENT and self._only in ("", key.name)
        }
        before, self._allowed = self._allowed, allowed
        for user in before.keys() - allowed.keys():
            key = before[user]
            log.warning("client %s %s is no longer allowed", key.name, key.fingerprint)
        if gone := before.keys() - allowed.keys():
            self._cut(gone)

    def _cut(self, users: set[str]) -> None:
        """Ends the connections of keys; and of those who have not said yet who they are."""
        with self._lock:
            chosen = [
                (fd, one)
                for fd, one in self._connections.items()
                if one.user in users or one.user is None
            ]
        for fd, one in chosen:
            if _shut_down(fd, one.peer) and one.user is not None:
                self._count(cut=1)
                log.warning(
                    "cut off %s at %s", fingerprint(z85.decode(one.user.encode())), one.peer
                )

    def _about(self, user: str) -> str:
        key = self._allowed[user]
        return f"client {key.name} {key.fingerprint}"

    def _count(self, **more: int) -> None:
        with self._lock:
            now = {name: getattr(self._counts, name) + n for name, n in more.items()}
            self._counts = replace(self._counts, **now)


def _peer(fd: int) -> Any:
    """Address and port at the other end of a connection, None when it has ended."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
        return connection.getpeername()
    return None


def _shut_down(fd: int, peer: Any) -> bool:
    """Ends a connection that libzmq owns; not another that got its file descriptor meanwhile."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
        if peer is not None and connection.getpeername() == peer:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False
