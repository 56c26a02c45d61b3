"""Server-sent events of a streamed chat completion."""

import json

from kairos_ros.core.errors import WireError
from kairos_ros.gateway.chat import LARGEST_ANSWER, Said, error_body, read_said

DATA, END = b"data:", b"[DONE]"


class EventReader:
    """Reads a stream beside its way to the client: whether it is whole, and what it says."""

    def __init__(self) -> None:
        self.done = False
        """The event that ends a stream has come."""
        self.said = Said("", 0)
        """The model, and the tokens: as the server counts them, else one for each event."""
        self._rest = bytearray()
        self._events = 0

    def read(self, piece: bytes) -> None:
        *lines, last = piece.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += last[: LARGEST_ANSWER - len(self._rest)]
        for line in lines:
            if line.startswith(DATA):
                self._read(line[len(DATA) :].strip())

    def _read(self, event: bytes) -> None:
        if event == END:
            self.done = True
            return
        try:
            said = read_said(event)
        except WireError:
            return  # an event of a kind that is not known; the client gets it as it is
        self._events += 1
        self.said = Said(said.model or self.said.model, said.completion_tokens or self._events)


def error_event(message: str, code: str) -> bytes:
    """Ends a stream that broke off."""
    return b"data: " + json.dumps(error_body(message, code)).encode() + b"\n\n"
