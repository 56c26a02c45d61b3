"""Reading a socket that others can reach: who may speak, and how much, before what was said."""

import contextlib
import logging
import time
from collections.abc import Buffer

import zmq

from kairos_ros.core.errors import RefusalCode
from kairos_ros.transport.frames import LIMITS, FrameLimits, encode
from kairos_ros.transport.message_codec import error_message
from kairos_ros.transport.messages import BatchError
from kairos_ros.transport.rate import Budgets, RateDecision, RateLimit
from kairos_ros.transport.zap_authenticator import ZapAuthenticator

log = logging.getLogger(__name__)

MAX_DROPS = 64
"""Messages that one call throws away at most, so that its caller's other work goes on."""


class Inbox:
    """The receiving side of a ROUTER or DEALER, for the thread that owns it.

    `authenticator` where the socket has one; `rate` None for a peer that is trusted.
    """

    def __init__(
        self,
        socket: zmq.Socket,
        authenticator: ZapAuthenticator | None = None,
        rate: RateLimit | None = None,
        limits: FrameLimits = LIMITS,
    ) -> None:
        self._socket = socket
        self._routes = socket.type == zmq.ROUTER
        self._authenticator = authenticator
        self._budgets = Budgets(rate) if rate else None
        self._limits = limits
        self._newest: zmq.Frame | None = None

    @property
    def dropped(self) -> int:
        """Messages of peers that sent too much."""
        return self._budgets.dropped if self._budgets else 0

    @property
    def descriptor(self) -> int:
        """File descriptor of the connection that the newest message came through; -1: none."""
        try:
            return int(self._newest.get(zmq.SRCFD)) if self._newest else -1
        except zmq.ZMQError:
            return -1

    def receive(self) -> list[Buffer]:
        """The next message that may be decoded (a ROUTER's begins with the peer's routing id).

        Frames but the first are views on what libzmq received.

        Peers that send too much are told so once, with an `error` that names no batch. Never
        blocks; raises zmq.Again when nothing waits.
        """
        for _ in range(MAX_DROPS):
            frames, peer, size = self._read()
            if frames is None:
                continue
            verdict = RateDecision.READ
            if self._budgets:
                verdict = self._budgets.spend(peer or frames[0], size, time.monotonic())
            if verdict is RateDecision.READ:
                return frames
            if verdict is RateDecision.DROP_AND_TELL:
                self._tell(frames[0], peer)
        raise zmq.Again

    def _read(self) -> tuple[list[Buffer] | None, str, int]:
        """Frames (None: not to be read), who sent them where that is proved, and their bytes.

        At most `limits.frames + 2` frames are kept (routing id, and one too many, so that the
        decoder refuses the message); the rest of a longer one is thrown away.
        """
        first = self._newest = self._socket.recv(zmq.NOBLOCK, copy=False)
        peer, admitted = "", True
        if self._authenticator is not None:
            peer = _said(first)
            admitted = self._authenticator.allows(peer, first.get(zmq.SRCFD))
        frames: list[Buffer] = [first.bytes]
        size = len(first)
        while self._socket.getsockopt(zmq.RCVMORE):
            frame = self._socket.recv(copy=False)
            size += len(frame)
            if admitted and len(frames) < self._limits.frames + 2:
                frames.append(frame.buffer)
        return (frames if admitted else None), peer, size

    def _tell(self, route: Buffer, peer: str) -> None:
        who = self._authenticator.name_of(peer) if self._authenticator else "a client"
        log.warning("%s sends more than it may: its messages are dropped", who)
        if self._routes:
            reason = "you send more messages or bytes than this engine accepts: slow down"
            refusal = encode(error_message(BatchError(None, RefusalCode.OVERLOADED, reason)))
            with contextlib.suppress(zmq.ZMQError):  # full, or gone already
                self._socket.send_multipart([route, *refusal], zmq.NOBLOCK)


def _said(frame: zmq.Frame) -> str:
    """The key that the peer proved to hold, as the authenticator named it; else nothing."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""
