"""Our end of ZeroMQ's wire against libzmq's own sockets, and against whoever speaks something
else."""

import asyncio
import contextlib

import pytest
import zmq
import zmq.asyncio

from kairos_ros.core.wire_check import TooLargeError
from kairos_ros.doors.groot.zmtp import GREETING, MOST_FRAMES, EndedError, Link, Message

MOST = 1000
"""Bytes of a message."""
WAIT_S = 30.0
REQ = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ"
HELLO = GREETING + REQ


def served(client, answer=lambda message: message.body[::-1]):
    """Runs `client(port)` beside a server that answers every message; why its connections ended."""
    ended: list[str] = []

    async def serve(reader, writer) -> None:
        link = Link(reader, writer, MOST)
        try:
            await link.greet(await link.begin())
            while True:
                message = await link.receive()
                await link.send(message, answer(message))
        except EndedError as why:
            ended.append(str(why))
        finally:
            await link.end()

    async def both() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(WAIT_S):
            await client(port)
            while not ended:
                await asyncio.sleep(0.01)
        server.close()

    asyncio.run(both())
    return ended


@contextlib.contextmanager
def libzmq(kind: int, port: int, **options):
    with zmq.asyncio.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        for name, value in options.items():
            setattr(socket, name, value)
        socket.connect(f"tcp://127.0.0.1:{port}")
        yield socket


def test_a_request_socket_is_answered_again_and_again():
    async def client(port: int) -> None:
        with libzmq(zmq.REQ, port) as socket:
            for size in (0, 1, 255, 256, MOST):
                body = bytes(n % 251 for n in range(size))
                await socket.send(body)
                assert await socket.recv() == body[::-1]

    assert served(client) == [""]


def test_a_relaxed_request_socket_gets_the_answer_to_its_newest_request():
    def ask(port: int) -> bytes:
        # pyzmq's sockets for asyncio sleep over the second of two answers that come at once
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger, socket.req_relaxed, socket.req_correlate = 0, 1, 1
            socket.rcvtimeo = round(1000 * WAIT_S)
            socket.connect(f"tcp://127.0.0.1:{port}")
            socket.send(b"one")
            socket.send(b"two")
            return socket.recv()

    async def client(port: int) -> None:
        assert await asyncio.to_thread(ask, port) == b"owt"

    assert served(client) == [""]


def test_a_socket_that_probes_its_peer_is_answered_while_it_waits():
    async def client(port: int) -> None:
        options = {"heartbeat_ivl": 20, "heartbeat_timeout": 2000}
        with libzmq(zmq.DEALER, port, **options) as socket:
            await asyncio.sleep(0.2)
            await socket.send_multipart([b"", b"still here"])
            assert await socket.recv_multipart() == [b"", b"ereh llits"]

    assert served(client) == [""]  # one connection


def test_a_message_beyond_the_limit_is_answered_and_the_next_one_is_read():
    wrong = []

    def answer(message: Message) -> bytes:
        wrong.append(message.wrong)
        return b"too large" if message.wrong else message.body

    async def client(port: int) -> None:
        with libzmq(zmq.REQ, port) as socket:
            await socket.send(bytes(MOST + 1))
            assert await socket.recv() == b"too large"
            await socket.send(b"small")
            assert await socket.recv() == b"small"

    served(client, answer)
    assert isinstance(wrong[0], TooLargeError)
    assert f"of {MOST + 1} bytes" in str(wrong[0])
    assert wrong[1] is None


def test_a_request_of_several_frames_is_answered_as_none():
    async def client(port: int) -> None:
        with libzmq(zmq.DEALER, port) as socket:
            await socket.send_multipart([b"", b"a", b"b"])
            assert (await socket.recv_multipart())[:1] == [b""]

    def answer(message: Message) -> bytes:
        assert "2 frames" in str(message.wrong)
        return b"no"

    assert served(client, answer) == [""]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "are not those of ZeroMQ"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "speaks ZMTP 1"),
        (GREETING.replace(b"NULL\0", b"CURVE") + REQ, "security by CURVE"),
        (GREETING + b"\x00\x05hello", "says nothing of itself"),
        (GREETING + b"\x06" + (2**40).to_bytes(8), "says nothing of itself"),
        (GREETING + b"\x04\x07\x05READY\xff", "is of no type"),
        (GREETING + REQ.replace(b"\x19", b"\x1a").replace(b"\x03REQ", b"\x04PUSH"), "is PUSH"),
        (HELLO + b"\x09\x00", "flags 0x09"),
        (HELLO + b"\x05\x00", "flags 0x05"),
        (HELLO + b"\x02" + (2**62).to_bytes(8), "more than 16 times the limit"),
        (HELLO + b"\x01\x00" * (MOST_FRAMES + 1), f"more than {MOST_FRAMES} frames"),
        (HELLO + b"\x06" + (2**40).to_bytes(8), "a command of"),
        (HELLO + b"\x01\x00\x00\x05he", ""),
        (GREETING[:20], ""),
        (b"", ""),
    ],
)
def test_who_speaks_something_else_is_ended_with_the_reason(said, why):
    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        if not why:
            writer.write_eof()
        assert (await reader.read()).startswith(GREETING if said else b"")
        writer.close()

    (reason,) = served(client)
    assert why in reason
    assert bool(why) == bool(reason)
