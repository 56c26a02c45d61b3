"""ZeroMQ sockets as engines use them: bounded, local, and read without trusting the peer."""

import zmq

from kairos_ros.core.errors import ConfigError
from kairos_ros.transport.frames import LIMITS, FrameLimits

HIGH_WATER = 256
"""Messages that may wait on a socket; heartbeats stop long before."""


def bind_router(context: zmq.Context, endpoint: str, limits: FrameLimits = LIMITS) -> zmq.Socket:
    """The engine's end: a ROUTER that serves any number of clients."""
    socket = _socket(context, zmq.ROUTER, endpoint, limits)
    socket.bind(endpoint)
    return socket


def connect_dealer(context: zmq.Context, endpoint: str, limits: FrameLimits = LIMITS) -> zmq.Socket:
    """The client's end: a DEALER that keeps connecting until the engine is there."""
    socket = _socket(context, zmq.DEALER, endpoint, limits)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.connect(endpoint)
    return socket


def receive(socket: zmq.Socket, limits: FrameLimits = LIMITS) -> list[bytes]:
    """One multipart message, without blocking.

    At most `limits.frames + 2` frames are kept (identity and one too many, so that the decoder
    refuses the message); the rest of a longer one is read and thrown away.
    Raises zmq.Again when nothing waits.
    """
    frames = [socket.recv(zmq.NOBLOCK)]
    while socket.getsockopt(zmq.RCVMORE):
        frame = socket.recv()
        if len(frames) < limits.frames + 2:
            frames.append(frame)
    return frames


def check_endpoint(endpoint: str) -> None:
    """Engines are reached over ipc:// and inproc:// until links can be encrypted."""
    if not endpoint.startswith(("ipc://", "inproc://")):
        raise ConfigError(
            f"engine endpoint {endpoint!r}: only ipc:// (and inproc:// in one process) is served, "
            "because a network link needs keys"
        )


def _socket(context: zmq.Context, kind: int, endpoint: str, limits: FrameLimits) -> zmq.Socket:
    check_endpoint(endpoint)
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    # libzmq drops a peer that announces a larger frame, before allocating it.
    socket.setsockopt(zmq.MAXMSGSIZE, max(limits.header_bytes, limits.array_bytes))
    return socket
