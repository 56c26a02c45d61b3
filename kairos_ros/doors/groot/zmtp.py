"""The server's end of ZMTP 3, the wire of ZeroMQ (rfc.zeromq.org/spec/23 and 37), for clients with
a REQ or DEALER socket.

libzmq's sockets are not used, because a server that strangers reach needs what they cannot do: end
one connection, bound the frames of a message, and answer a message that is too large (libzmq ends
its connection, and the client, which connects again, waits for an answer for ever). Here, every
connection is a stream of its own. What is behind the message that is answered waits in the
client's socket.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from kairos_ros.core.errors import WireError
from kairos_ros.core.wire_check import TooLargeError, printable

MORE, LONG, COMMAND = 1, 2, 4
"""Flags of a frame."""
MOST_FRAMES = 16
"""Of one message: a client sends two, relaxed request sockets three."""
MOST_COMMAND_BYTES = 1024
SKIPPED = 16
"""A message of up to this many times the limit is read to its end, to be answered by an error."""
MESSAGE_S = 60.0
"""A message that has begun ends within this time."""
CLOSE_S = 2.0
CLIENTS = (b"REQ", b"DEALER")
_VERSION, _MECHANISM = bytes([3, 1]), b"NULL".ljust(20, b"\0")
GREETING = b"\xff" + bytes(8) + b"\x7f" + _VERSION + _MECHANISM + bytes(32)


class EndedError(Exception):
    """The connection is over; the text says why, and is empty where its peer has ended it."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a client asks."""

    envelope: tuple[bytes, ...]
    """Frames that come back in front of the answer."""
    body: bytes
    wrong: WireError | None = None
    """Why there is no body."""


class Link:
    """One connection. Its methods raise EndedError where it is over."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most_bytes: int
    ) -> None:
        """most_bytes: of one message."""
        self._reader, self._writer, self._most = reader, writer, most_bytes

    async def begin(self) -> bytes:
        """The first ten bytes that come, for `greet`. Waits for as long as its caller lets it."""
        return await self._read(10)

    async def greet(self, signature: bytes) -> None:
        """Both sides say what they are. Waits for the client for as long as its caller lets it."""
        self._writer.write(GREETING)
        if signature[0] != 0xFF or not signature[9] & 1:
            raise EndedError("its first bytes are not those of ZeroMQ")
        version = await self._read(1)
        if version[0] < _VERSION[0]:
            raise EndedError(f"it speaks ZMTP {version[0]}; versions from 3 on are spoken here")
        greeting = await self._read(len(GREETING) - 11)
        if greeting[1:21] != _MECHANISM:
            name = printable(greeting[1:21].rstrip(b"\0").decode(errors="replace"), 20)
            raise EndedError(f"it wants security by {name}, which is not spoken here")
        flags, size = await self._head()
        if not flags & COMMAND or size > MOST_COMMAND_BYTES:
            raise EndedError("it says nothing of itself after its greeting")
        ready = await self._read(size)
        kind = _property(ready, b"socket-type") if ready.startswith(b"\x05READY") else b""
        if kind not in CLIENTS:
            name = printable(kind.decode(errors="replace"), 20)
            raise EndedError(f"its socket is {name or 'of no type'}; clients have a REQ socket")
        await self._write(_command(b"READY", _pair(b"Socket-Type", b"ROUTER")))

    async def receive(self) -> Message:
        """The next message."""
        flags, length = await self._frame()
        try:
            async with asyncio.timeout(MESSAGE_S):
                return await self._rest(flags, length)
        except TimeoutError:
            raise EndedError(f"a message was not complete after {MESSAGE_S:g} s") from None

    async def send(self, message: Message, answer: bytes) -> None:
        """Answers it. Waits for a client that reads slowly."""
        await self._write(b"".join(_frames([*message.envelope, answer])))

    async def end(self) -> None:
        """Sends what is left to send, if its client reads it soon."""
        self._writer.close()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._writer.wait_closed()
        self._writer.transport.abort()

    async def _rest(self, flags: int, length: int) -> Message:
        """Of a message whose first frame has begun."""
        frames: list[bytes] = []
        size = 0
        while True:
            size += length
            if size > SKIPPED * self._most:
                raise EndedError(f"a message of more than {SKIPPED} times the limit")
            if len(frames) == MOST_FRAMES:
                raise EndedError(f"a message of more than {MOST_FRAMES} frames")
            if size <= self._most:
                frames.append(await self._read(length))
            else:
                frames.append(b"")
                await self._skip(length)
            if not flags & MORE:
                break
            flags, length = await self._frame()
        ends = frames.index(b"") + 1 if b"" in frames[:-1] else 0
        envelope, bodies = tuple(frames[:ends]), frames[ends:]
        if size > self._most:
            text = f"a message of {size} bytes; at most {self._most} are taken (--max-message-mb)"
            return Message(envelope, b"", TooLargeError(text))
        if len(bodies) != 1:
            return Message(envelope, b"", WireError(f"a request of {len(bodies)} frames, not one"))
        return Message(envelope, bodies[0])

    async def _frame(self) -> tuple[int, int]:
        """Flags and length of the next frame of a message; commands in front of it are obeyed."""
        while True:
            flags, length = await self._head()
            if not flags & COMMAND:
                return flags, length
            await self._obey(length)

    async def _obey(self, length: int) -> None:
        if length > MOST_COMMAND_BYTES:
            raise EndedError(f"a command of {length} bytes")
        command = await self._read(length)
        if command.startswith(b"\x04PING"):
            await self._write(_command(b"PONG", command[7:23]))  # behind its time to live

    async def _head(self) -> tuple[int, int]:
        """Flags and length of the next frame of any kind."""
        (flags,) = await self._read(1)
        if flags > 7 or (flags & COMMAND and flags & MORE):
            raise EndedError(f"a frame with flags 0x{flags:02x}, which is none of ZeroMQ")
        return flags, int.from_bytes(await self._read(8 if flags & LONG else 1))

    async def _read(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            raise EndedError from None

    async def _skip(self, size: int) -> None:
        while size > 0:
            size -= len(await self._read(min(size, 1 << 16)))

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError:
            raise EndedError from None


def _frames(parts: Sequence[bytes]) -> list[bytes]:
    return [
        _head_of(MORE if n < len(parts) - 1 else 0, len(part)) + part
        for n, part in enumerate(parts)
    ]


def _command(name: bytes, body: bytes) -> bytes:
    data = bytes([len(name)]) + name + body
    return _head_of(COMMAND, len(data)) + data


def _head_of(flags: int, length: int) -> bytes:
    if length < 256:
        return bytes([flags, length])
    return bytes([flags | LONG]) + length.to_bytes(8)


def _pair(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4) + value


def _property(ready: bytes, wanted: bytes) -> bytes:
    """Of the metadata of a READY command; empty where it is not told."""
    at = len(b"\x05READY")
    with contextlib.suppress(IndexError):
        while at < len(ready):
            name = ready[at + 1 : at + 1 + ready[at]]
            at += 1 + len(name)
            size = int.from_bytes(ready[at : at + 4])
            value = ready[at + 4 : at + 4 + size]
            if name.lower() == wanted:
                return value
            at += 4 + size
    return b""
