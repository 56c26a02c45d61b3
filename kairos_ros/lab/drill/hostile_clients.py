"""Hostile clients of a worker: noise without a key, and nonsense with one. Bounded in time."""

import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgpack
import zmq

from kairos_ros.core.address import tcp_address
from kairos_ros.transport.frames import LIMITS, VERSION, decode, encode
from kairos_ros.transport.key_file import KeyPair, PublicKey
from kairos_ros.transport.message_codec import ping_message, read_status
from kairos_ros.transport.sockets import CurveClient, connect_dealer

CONNECTIONS = 20
NOISE_BYTES = 65_536
MESSAGES = 300
SEND_WITHIN_S = 5.0
ANSWERED_WITHIN_MS = 2000
UNANSWERED = 8
"""Messages at a time: a worker drops answers to who does not read them."""
HEARD_WITHIN_S = 20.0
"""A key that was let in just now is known after a second or two; who came too early is heard at the
next handshake."""


@dataclass(frozen=True, slots=True)
class WorkerAccess:
    """Where a worker listens, and the keys of a client that it lets in."""

    endpoint: str
    """tcp://HOST:PORT, the worker itself and not the far end of a link."""
    client: KeyPair
    server: PublicKey
    pid: int = 0
    """Of the worker; 0 where it is not a process of this drill."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return tcp_address(self.endpoint)


def send_noise(host: str, port: int) -> int:
    """Random bytes into a port, from several connections; returns the bytes sent."""
    sent = 0
    for _ in range(CONNECTIONS):
        try:
            with socket.create_connection((host, port), timeout=1.0) as peer:
                sent += peer.send(os.urandom(NOISE_BYTES))
        except OSError:  # it hung up on us
            continue
    return sent


@dataclass(frozen=True, slots=True)
class Reception:
    """How a worker received a peer."""

    heard: bool
    """It answered a proper greeting: what followed reached its decoder."""
    sent: int = 0
    refused: int = 0
    """Messages that were answered by an error."""


def greet(access: WorkerAccess, within_s: float) -> Reception:
    """A proper greeting, and nothing else."""
    return _send(access, iter(()), within_s)


def await_ready(access: WorkerAccess, within_s: float) -> bool:
    """Whether a worker says within a time that it is ready for work."""
    until = time.monotonic() + within_s
    while (left_s := until - time.monotonic()) > 0:
        if _greeted(access, left_s) == "ready":
            return True
        time.sleep(0.5)
    return False


def send_garbage(access: WorkerAccess, *, seed: int = 1) -> Reception:
    """Messages that are none, from a client whose key is good."""
    return _send(access, _garbage(random.Random(seed)), HEARD_WITHIN_S)


def send_oversized(access: WorkerAccess) -> Reception:
    """Claims of more than any memory holds, too many frames, and one beyond the limit."""
    return _send(access, _oversized(), HEARD_WITHIN_S)


def resident_mb(pid: int) -> float:
    """Memory that a process uses now."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _garbage(draw: random.Random) -> Iterator[list[bytes]]:
    for i in range(MESSAGES):
        match i % 4:
            case 0:
                yield [draw.randbytes(draw.randrange(1, 2000)) for _ in range(draw.randrange(1, 6))]
            case 1:
                yield [msgpack.packb([VERSION, "infer", {"batch": -i, "requests": None}, []])]
            case 2:
                yield [msgpack.packb([VERSION + 1, "infer", {}, []]), draw.randbytes(100)]
            case 3:
                head = [["float32", [3, i]], ["object", [1]]]
                yield [msgpack.packb([VERSION, "infer", {"batch": i}, head]), draw.randbytes(i)]


def _oversized() -> Iterator[list[bytes]]:
    for size in (2**40, 2**62):
        yield [msgpack.packb([VERSION, "infer", {"batch": 1}, [["float32", [size]]]]), b"1234"]
    yield [msgpack.packb([VERSION, "ping", {"ping": 1, "policy": "x" * LIMITS.header_bytes}, []])]
    yield [b"x"] * (2 * LIMITS.frames)
    yield [bytes(LIMITS.array_bytes + 1)]  # libzmq hangs up


def _send(
    access: WorkerAccess,
    messages: Iterator[list[bytes]],
    heard_within_s: float,
) -> Reception:
    with _connected(access) as client:
        if not _greet(client, heard_within_s):
            return Reception(False)
        sent, refused, until = 0, 0, time.monotonic() + SEND_WITHIN_S
        for message in messages:
            with contextlib.suppress(zmq.Again):
                client.send_multipart(message)
                sent += 1
            patience_ms = 0 if sent - refused < UNANSWERED else ANSWERED_WITHIN_MS
            refused += _errors(client, patience_ms, sent - refused)
            if time.monotonic() > until:
                break
        return Reception(True, sent, refused + _errors(client, ANSWERED_WITHIN_MS, sent - refused))


@contextlib.contextmanager
def _connected(access: WorkerAccess) -> Iterator[zmq.Socket]:
    security = CurveClient(access.client, access.server)
    with (
        zmq.Context() as context,
        connect_dealer(context, access.endpoint, security=security) as client,
    ):
        client.setsockopt(zmq.LINGER, 1000)
        client.setsockopt(zmq.SNDTIMEO, 1000)
        yield client


def _greet(client: zmq.Socket, within_s: float) -> str:
    """What a worker answers to a proper greeting: its state; nothing where it does not."""
    client.send_multipart(encode(ping_message(1, "")))
    if not client.poll(round(1000 * within_s)):
        return ""
    return read_status(decode(client.recv_multipart())).state


def _greeted(access: WorkerAccess, within_s: float) -> str:
    with _connected(access) as client:
        return _greet(client, within_s)


def _errors(client: zmq.Socket, wait_ms: int, most: int) -> int:
    """Answers that say that a message was refused, of those that are awaited."""
    errors = 0
    while errors < most and client.poll(wait_ms):
        errors += decode(client.recv_multipart()).kind == "error"
    return errors
