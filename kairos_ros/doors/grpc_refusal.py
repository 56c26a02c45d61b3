"""What a gRPC client is answered: its first call fails with a text that its user reads.

Only as much of HTTP/2 (RFC 9113) is spoken as that takes: nothing that the client sends is decoded
but the type and the stream of its frames.
"""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What an HTTP/2 client says first (section 3.4)."""
LARGEST = 65536
"""Bytes that a client may send before it makes a call."""
HEADERS, SETTINGS, GOAWAY = 1, 4, 7
END_STREAM, END_HEADERS = 1, 4
UNIMPLEMENTED = 12
"""Status of gRPC."""
TEXT = (
    "gRPC is not served here, since LeRobot's asynchronous inference sends pickled objects and "
    "nothing from a wire is unpickled; run lerobot-rollout with --policy.type=kairos"
)


class GrpcRefusal:
    """One connection."""

    def __init__(self) -> None:
        self._data = b""
        self._begun = False

    def answer(self, data: bytes) -> tuple[bytes, bool]:
        """What to send for what came, and whether the connection is to be closed then."""
        self._data += data
        said = b""
        if not self._begun and len(self._data) >= len(PREFACE):
            if not self._data.startswith(PREFACE):
                return b"", True
            self._begun, self._data = True, self._data[len(PREFACE) :]
            said = _frame(SETTINGS, 0, 0, b"")
        while self._begun and len(self._data) >= 9:
            length = int.from_bytes(self._data[:3])
            kind, stream = self._data[3], int.from_bytes(self._data[5:9]) & 0x7FFFFFFF
            if kind == HEADERS:
                refused = _frame(HEADERS, END_STREAM | END_HEADERS, stream, _refusal())
                last = struct.pack(">II", stream, 0)
                return said + refused + _frame(GOAWAY, 0, 0, last + TEXT.encode()), True
            if len(self._data) < 9 + length:
                break
            self._data = self._data[9 + length :]
        return said, len(self._data) > LARGEST


def _refusal() -> bytes:
    """Headers that are trailers at once, as literals without indexing (RFC 7541, section 6.2.2)."""
    fields = {"content-type": "application/grpc", "grpc-status": str(UNIMPLEMENTED)}
    fields["grpc-message"] = TEXT
    status_200 = b"\x88"
    return status_200 + b"".join(
        b"\x00" + _string(name) + _string(value) for name, value in fields.items()
    )


def _string(text: str) -> bytes:
    """With its length as an integer of 7 bits and what follows (RFC 7541, section 5)."""
    length = len(text)
    if length < 127:
        return bytes([length]) + text.encode()
    rest, more = length - 127, b""
    while rest >= 128:
        more += bytes([rest % 128 + 128])
        rest //= 128
    return b"\x7f" + more + bytes([rest]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload
