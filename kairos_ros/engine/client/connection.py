"""The socket of a link, dialled or bound as its specification says and read within limits; and what
is known of the worker at the other end."""

from collections.abc import Buffer, Sequence
from dataclasses import dataclass

import zmq

from kairos_ros.core.errors import KairosError
from kairos_ros.core.language.load import LanguageLoad
from kairos_ros.engine.client.remote_spec import RemoteSpec
from kairos_ros.transport.endpoint import Insecure
from kairos_ros.transport.frames import Message, decode
from kairos_ros.transport.inbox import Inbox
from kairos_ros.transport.messages import EngineDescription
from kairos_ros.transport.sockets import (
    CurveClient,
    CurveServer,
    ListenKeys,
    bind_dealer,
    connect_dealer,
)
from kairos_ros.transport.tcp_segments import tcp_segments
from kairos_ros.transport.zap_authenticator import ZapAuthenticator


@dataclass(slots=True)
class PeerState:
    """What is known of the worker since it was started, or looked for."""

    since: float
    heard: float
    worker: str = ""
    description: EngineDescription | None = None
    draining: bool = False
    useful: bool = False
    """It has finished a batch."""
    stage: str = ""
    """Of loading, as it was last told."""
    silence: str = ""
    """Since when nothing was heard, in words, once that is worth telling."""
    replicas: int = 1
    complaint: str = ""
    language: LanguageLoad | None = None


class WorkerConnection:
    """For one thread. Raises ConfigError or zmq.ZMQError where it is impossible."""

    def __init__(self, context: zmq.Context, spec: RemoteSpec) -> None:
        self._authenticator: ZapAuthenticator | None = None
        self._segments = (0, 0)
        try:
            self.socket = self._open(context, spec)
        except (KairosError, zmq.ZMQError):
            self._close_authenticator()
            raise
        self._inbox = Inbox(self.socket, self._authenticator)

    def _open(self, context: zmq.Context, spec: RemoteSpec) -> zmq.Socket:
        match spec.security:
            case ListenKeys() as listen:
                self._authenticator = ZapAuthenticator(context, listen.keys, listen.only)
                security = CurveServer(listen.own, self._authenticator)
                return bind_dealer(context, spec.endpoint, security=security)
            case Insecure() | None if spec.listen:
                return bind_dealer(context, spec.endpoint, security=spec.security)
            case CurveClient() | Insecure() | None:
                return connect_dealer(context, spec.endpoint, security=spec.security)

    def send(self, frames: Sequence[Buffer]) -> bool:
        """False where the socket is full: nothing gets through, and missing heartbeats tell."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Message:
        """The next message. Raises zmq.Again when nothing waits, WireError for a malformed one."""
        return decode(self._inbox.receive())

    def new_segments(self) -> tuple[int, int] | None:
        """TCP segments (sent, sent again) since the last call; None where the kernel does not say,
        or the peer has connected anew."""
        segments = tcp_segments(self._inbox.descriptor)
        if segments is None:
            return None
        before, self._segments = self._segments, segments
        sent, resent = segments[0] - before[0], segments[1] - before[1]
        return (sent, resent) if sent >= 0 and resent >= 0 else None

    def close(self) -> None:
        """Whatever waits in it is dropped."""
        self.socket.close(linger=0)
        self._close_authenticator()

    def _close_authenticator(self) -> None:
        if self._authenticator is not None:
            self._authenticator.close()
