"""The wire of Isaac-GR00T's PolicyClient, written from its description: its package cannot be
installed beside LeRobot."""

import io
from typing import Any

import msgpack
import numpy as np
import zmq

PATIENCE_MS = 60_000


class GrootError(RuntimeError):
    """What the server answered in place of what was asked for."""


class GrootClient:
    """One request socket. `newer`: arrays as the package msgpack-numpy makes them."""

    def __init__(self, where: str, token: str = "", *, newer: bool = False) -> None:
        self.token, self.newer = token, newer
        self.socket: zmq.Socket = zmq.Context.instance().socket(zmq.REQ)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        self.socket.connect(where)

    def call(self, endpoint: str, data: Any = None) -> Any:
        request = {"endpoint": endpoint} | ({"data": data} if data is not None else {})
        if self.token:
            request["api_token"] = self.token
        self.socket.send(packed(request, newer=self.newer))
        answer = unpacked(self.socket.recv())
        if isinstance(answer, dict) and "error" in answer:
            raise GrootError(answer["error"])
        return answer

    def get_action(self, seen: dict[str, Any], options: Any = None) -> tuple[Any, Any]:
        actions, info = self.call("get_action", {"observation": seen, "options": options})
        return actions, info

    def close(self) -> None:
        self.socket.close()


def packed(message: Any, *, newer: bool = False) -> bytes:
    def array(value: np.ndarray) -> dict[Any, Any]:
        if newer:
            fields = {b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
            return {b"nd": True, b"data": value.tobytes()} | fields
        file = io.BytesIO()
        np.save(file, value, allow_pickle=True)  # an object array is for the server to refuse
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}

    data: bytes = msgpack.packb(message, default=array)
    return data


def unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, object_hook=_read)


def _read(found: dict[Any, Any]) -> Any:
    if "as_npy" in found:
        return np.load(io.BytesIO(found["as_npy"]), allow_pickle=False)
    if found.get(b"nd"):
        return np.ndarray(found[b"shape"], found[b"type"], found[b"data"])
    return found
