"""Whoever may connect to `kairos doors`, as bytes on a TCP socket: what the dialects have in common
for those who test what hostile and broken clients do."""

import itertools
import socket
import struct
from io import BytesIO

import groot_robot
import msgpack
import numpy as np
import openpi_robot
from asking_robot import AskingRobot
from openpi_client import msgpack_numpy
from PIL import Image
from websockets.frames import Frame, Opcode

from bench.support.peers import groot_client
from kairos_ros.core.exchange import Actions, Observation, Request, RequestId
from kairos_ros.core.fit import RobotInterface
from kairos_ros.transport.frames import Message
from kairos_ros.transport.robot_link.messages import (
    SUBPROTOCOL,
    Announce,
    announce_message,
    read_answer,
    request_message,
)
from kairos_ros.transport.robot_link.one_frame import pack, unpack

PATIENCE_S = 60.0
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32)


class EndedError(Exception):
    """The server has ended the connection; with the code of a WebSocket, where it told one."""


class Peer:
    """One connection. `opening(name)`, `greeted()`, `framed(message)` and `read()` are the
    dialect's, and so are `request(state)` and `first_numbers(reply)`."""

    dialect: str
    hostile: dict[str, tuple[bytes, str]]
    """What is sent -> a part of the error that answers it."""
    horizon: int

    def __init__(self, where: str, name: str) -> None:
        self.socket = socket.create_connection(host_port(where), PATIENCE_S)
        self._file = self.socket.makefile("rb")
        self.socket.sendall(self.opening(name))
        self.greeted()

    def send(self, message: bytes) -> None:
        self.socket.sendall(self.framed(message))

    def taken(self, size: int) -> bytes:
        """The next bytes. Raises EndedError."""
        try:
            data = self._file.read(size)
        except ConnectionResetError:
            data = b""
        if len(data) < size:
            raise EndedError
        return data

    def end(self) -> EndedError:
        """Of the connection, once it has ended."""
        try:
            while True:
                self.read()
        except EndedError as ended:
            return ended

    def ask(self, state: float) -> np.ndarray:
        """The first number of every action of the chunk for this state."""
        self.send(self.request(state))
        return self.first_numbers(self.read())

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def vanish(self) -> None:
        """As when its host loses power: no goodbye reaches the server. Raises PermissionError where
        the kernel allows that to root only."""
        self.socket.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR of Linux
        self.close()

    def asking(self, first: float) -> AskingRobot:
        return AskingRobot(self.ask, self.close, first, self.horizon, pause_s=0.2)


class WebSocketPeer(Peer):
    subprotocol = ""

    def opening(self, name: str) -> bytes:
        more = f"Sec-WebSocket-Protocol: {self.subprotocol}\r\n" if self.subprotocol else ""
        return (
            f"GET /{name} HTTP/1.1\r\nHost: x\r\n{more}"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()

    def framed(self, message: bytes) -> bytes:
        return Frame(Opcode.BINARY, message).serialize(mask=True, extensions=[])

    def greeted(self) -> None:
        while self._file.readline() != b"\r\n":
            pass
        self.read()

    def read(self) -> bytes:
        while True:
            kind, length = self.taken(2)
            if length > 125:
                length = int.from_bytes(self.taken(2 if length == 126 else 8))
            data = self.taken(length)
            if kind & 15 == Opcode.CLOSE:
                raise EndedError(int.from_bytes(data[:2]))
            if kind & 15 == Opcode.PING:
                self.socket.sendall(Frame(Opcode.PONG, data).serialize(mask=True, extensions=[]))
            if kind & 15 in (Opcode.BINARY, Opcode.TEXT):
                return data


def host_port(where: str) -> tuple[str, int]:
    host, port = where.partition("://")[2].split(":")
    return host, int(port)


class OpenpiPeer(WebSocketPeer):
    dialect, horizon = "openpi", openpi_robot.CHUNK

    def request(self, state: float) -> bytes:
        return msgpack_numpy.packb(openpi_robot.observation(state))

    def first_numbers(self, reply: bytes) -> np.ndarray:
        return msgpack_numpy.unpackb(reply)["actions"][:, 0]

    def error(self) -> str:
        return self.read().decode()

    @staticmethod
    def _of(**changes) -> bytes:
        return msgpack_numpy.packb(openpi_robot.observation(**changes))

    unknown = msgpack_numpy.packb(openpi_robot.observation(0.5, more=1))


OpenpiPeer.hostile = {
    "bytes that are none": (b"\xc1\xc1", "bad observation"),
    "cut short": (OpenpiPeer._of()[:-7], "cut short"),
    "an object array": (
        msgpack.packb({"a": {b"__ndarray__": True, b"data": b"0", b"dtype": "|O", b"shape": [1]}}),
        "is refused",
    ),
    "many lists": (b"\xdd\x00\x0f\xff\xff" + b"\x90" * 900_000, "more than 5000 values"),
    "nothing": (msgpack.packb({"prompt": "pick"}), "has no 'observation/state'"),
    "not finite": (OpenpiPeer._of(**{"observation/state": np.array([0, np.nan])}), "finite"),
    "another dtype": (OpenpiPeer._of(**{"observation/image": np.zeros((4, 4, 3))}), "uint8"),
    "another shape": (OpenpiPeer._of(**{"observation/state": np.zeros(3)}), "has shape (3,)"),
}


class NativePeer(WebSocketPeer):
    dialect, subprotocol, horizon = "kairos", SUBPROTOCOL, 4
    jpeg = BytesIO()
    Image.new("RGB", (32, 24)).save(jpeg, "JPEG")

    _round = 0

    def opening(self, name: str) -> bytes:
        """With what it says of itself, which need not wait for the welcome."""
        robot = RobotInterface(2, 2, {"front": (24, 32)}, frozenset())
        announced = pack(announce_message(Announce(robot, 100.0)))
        return super().opening(name) + self.framed(announced)

    def request(self, state: float, image: str = "front", attempt: int = 0) -> bytes:
        seen = Observation(np.array([state, 0.5], np.float32), {image: self.jpeg.getvalue()})
        asked = RequestId("any", "any", "1", self._round, attempt)
        return pack(request_message(Request(asked, "pick", observation=seen)))

    def ask(self, state: float) -> np.ndarray:
        """Asks again where nothing has come in some seconds: a first answer may get lost."""
        self._round += 1
        for attempt in itertools.count():
            self.send(self.request(state, attempt=attempt))
            news = 0
            while news < 4:  # a server tells them every second
                message = unpack(self.read())
                news += message.kind == "server"
                if message.kind == "answer":
                    answer = read_answer(message, "any", "any")
                    if answer.id.round == self._round and isinstance(answer.body, Actions):
                        return answer.body.actions[:, 0]
        raise AssertionError

    def error(self) -> str:
        while (message := unpack(self.read())).kind != "error":
            pass
        return message.fields["reason"]

    @property
    def hostile(self) -> dict[str, tuple[bytes, str]]:
        good = self.request(0.0)
        return {
            "bytes that are none": (b"\x00garbage", "frames"),
            "cut short": (good[:-7], "in a message that has"),
            "an object array": (good.replace(b"float32", b"object "), "dtype"),
            "many lists": (b"\xff\xff\0\0" + bytes(4 * 65535), "frames"),
            "nothing": (pack(Message("request")), "expected text"),
            "not finite": (self.request(float("nan")), "not finite"),
            "another dtype": (good.replace(b"float32", b"complex"), "dtype"),
            "another shape": (self.request(0.0, image="side"), "pictures of side"),
        }


class GrootPeer(Peer):
    dialect, horizon = "groot", groot_robot.CHUNK

    def opening(self, name: str) -> bytes:
        return GREETING + READY

    def framed(self, message: bytes) -> bytes:
        return b"\x01\x00\x02" + struct.pack(">Q", len(message)) + message

    def greeted(self) -> None:
        self.taken(len(GREETING))

    def read(self) -> bytes:
        while True:
            (flags,) = self.taken(1)
            data = self.taken(int.from_bytes(self.taken(8 if flags & 2 else 1)))
            if not flags & 5:  # neither a command nor what is in front of an answer
                return data

    def request(self, number: float, **changes) -> bytes:
        seen = groot_robot.observation(number, **changes)
        return groot_client.packed({"endpoint": "get_action", "data": {"observation": seen}})

    def first_numbers(self, reply: bytes) -> np.ndarray:
        actions, _ = groot_client.unpacked(reply)
        return actions["arm"][0, :, 0]

    def error(self) -> str:
        return groot_client.unpacked(self.read())["error"]

    @property
    def unknown(self) -> bytes:
        return self.request(0.5, state={"eef": np.zeros((1, 1, 9), np.float32)})

    @property
    def hostile(self) -> dict[str, tuple[bytes, str]]:
        def state(array) -> bytes:
            return self.request(0.0, state={"arm": array})

        return {
            "bytes that are none": (b"\xc1\xc1", "bad request"),
            "cut short": (self.request(0.0)[:-7], "cut short"),
            "an object array": (state(np.array([[[{}]]], object)), "is refused"),
            "many lists": (b"\xdd\x00\x0f\xff\xff" + b"\x90" * 900_000, "more than 5000 values"),
            "nothing": (msgpack.packb({}), "data of get_action are NoneType"),
            "not finite": (state(np.full((1, 1, 1), np.nan, np.float32)), "must be finite"),
            "another dtype": (state(np.full((1, 1, 1), True)), "must be numbers"),
            "another shape": (state(np.zeros((1, 2), np.float32)), "[robots, observations"),
        }


PEERS = {peer.dialect: peer for peer in (OpenpiPeer, NativePeer, GrootPeer)}
