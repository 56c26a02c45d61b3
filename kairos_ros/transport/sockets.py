"""ZeroMQ sockets as engines use them: bounded and secured.

On a link over tcp the side that binds is the CURVE server, with a `ZapAuthenticator`; the side that
connects knows the server's public key. A worker may be either: `bind_router` and `connect_dealer`
where the serving node dials, `bind_dealer` and `connect_router` where a worker behind NAT does.
"""

from dataclasses import dataclass

import zmq

from kairos_ros.transport.endpoint import Insecure, check_endpoint, is_local
from kairos_ros.transport.frames import LIMITS, FrameLimits
from kairos_ros.transport.key_file import KeyPair, PublicKey
from kairos_ros.transport.key_folder import KeyFolder
from kairos_ros.transport.zap_authenticator import ZAP_DOMAIN, ZapAuthenticator

HIGH_WATER = 256
"""Messages that may wait on a local socket; heartbeats stop long before."""
NETWORK_HIGH_WATER = 64
"""The same on a network link, whose far side is trusted less."""
HANDSHAKE_MS = 5000
"""A peer that has not proved its key by then is cut off."""
HEARTBEAT_MS = 500
CONNECT_MS = 1000
"""An attempt to connect that takes longer is given up and made again: TCP by itself would wait
longer each time, and so be late when a link comes back."""
SILENCE_MS = 3000
"""A connection without a sign of life for so long is closed, and dialled again."""


@dataclass(frozen=True, slots=True)
class CurveServer:
    """Security of the side that binds: its key, and who judges the clients."""

    own: KeyPair
    authenticator: ZapAuthenticator


@dataclass(frozen=True, slots=True)
class CurveClient:
    """Security of the side that connects: its key, and the server it wants to find there."""

    own: KeyPair
    server: PublicKey


@dataclass(frozen=True, slots=True)
class ListenKeys:
    """What a side that listens on the network needs to become a `CurveServer`."""

    own: KeyPair
    keys: KeyFolder
    """Whose `clients/` may connect."""
    only: str = ""
    """Name of the one client key that may; empty: all of them."""


def bind_router(
    context: zmq.Context,
    endpoint: str,
    limits: FrameLimits = LIMITS,
    security: CurveServer | Insecure | None = None,
) -> zmq.Socket:
    """The engine's end: a ROUTER that serves any number of clients."""
    return _noticing(_bind(context, zmq.ROUTER, endpoint, limits, security))


def connect_dealer(
    context: zmq.Context,
    endpoint: str,
    limits: FrameLimits = LIMITS,
    security: CurveClient | Insecure | None = None,
) -> zmq.Socket:
    """The client's end: a DEALER that keeps connecting until the engine is there."""
    return _connect(context, zmq.DEALER, endpoint, limits, security)


def bind_dealer(
    context: zmq.Context,
    endpoint: str,
    limits: FrameLimits = LIMITS,
    security: CurveServer | Insecure | None = None,
) -> zmq.Socket:
    """The client's end for an engine that dials in. One engine per socket: a DEALER deals its
    messages out in turn, so let in that engine's key only (`ZapAuthenticator(..., only=)`)."""
    return _bind(context, zmq.DEALER, endpoint, limits, security)


def connect_router(
    context: zmq.Context,
    endpoint: str,
    limits: FrameLimits = LIMITS,
    security: CurveClient | Insecure | None = None,
) -> zmq.Socket:
    """The engine's end where it dials out, to a `bind_dealer`."""
    return _noticing(_connect(context, zmq.ROUTER, endpoint, limits, security))


def _noticing(router: zmq.Socket) -> zmq.Socket:
    """Sending to a peer that is gone fails (EHOSTUNREACH) instead of passing for done."""
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    return router


def _bind(
    context: zmq.Context,
    kind: int,
    endpoint: str,
    limits: FrameLimits,
    security: CurveServer | Insecure | None,
) -> zmq.Socket:
    check_endpoint(endpoint, security if isinstance(security, CurveServer | Insecure) else None)
    socket = _socket(context, kind, endpoint, limits)
    try:
        if isinstance(security, CurveServer) and not is_local(endpoint):
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, security.own.secret)
            socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            # Without an authenticator nobody comes in; libzmq's default is that everybody does.
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.bind(endpoint)
        if isinstance(security, CurveServer) and not is_local(endpoint):
            # libzmq never returns from binding a port in use with a socket that is watched already
            security.authenticator.guard(socket)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def _connect(
    context: zmq.Context,
    kind: int,
    endpoint: str,
    limits: FrameLimits,
    security: CurveClient | Insecure | None,
) -> zmq.Socket:
    keys = security if isinstance(security, CurveClient | Insecure) else None
    check_endpoint(endpoint, keys, dial=True)
    socket = _socket(context, kind, endpoint, limits)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
    if isinstance(security, CurveClient) and not is_local(endpoint):
        socket.setsockopt(zmq.CURVE_SERVERKEY, security.server.public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, security.own.key.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, security.own.secret)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def _socket(context: zmq.Context, kind: int, endpoint: str, limits: FrameLimits) -> zmq.Socket:
    socket: zmq.Socket = context.socket(kind)
    local = is_local(endpoint)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER if local else NETWORK_HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER if local else NETWORK_HIGH_WATER)
    # libzmq drops a peer that announces a larger frame, before allocating it.
    socket.setsockopt(zmq.MAXMSGSIZE, max(limits.header_bytes, limits.array_bytes))
    if not local:
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    return socket
