"""The wire of Isaac-GR00T's PolicyClient, written from its description: the package of that name
cannot be installed beside LeRobot."""

import io

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
        self.socket = zmq.Context.instance().socket(zmq.REQ)
        self.socket.linger = 0
        self.socket.rcvtimeo = PATIENCE_MS
        self.socket.connect(where)

    def call(self, endpoint: str, data=None):
        request = {"endpoint": endpoint} | ({"data": data} if data is not None else {})
        if self.token:
            request["api_token"] = self.token
        self.socket.send(packed(request, newer=self.newer))
        return self.answer()

    def answer(self):
        """The next one. Raises GrootError."""
        answer = unpacked(self.socket.recv())
        if isinstance(answer, dict) and "error" in answer:
            raise GrootError(answer["error"])
        return answer

    def get_action(self, seen: dict, options=None):
        actions, info = self.call("get_action", {"observation": seen, "options": options})
        return actions, info

    def close(self) -> None:
        self.socket.close()


def packed(request, *, newer: bool = False) -> bytes:
    def array(value):
        if newer:
            fields = {"type": value.dtype.str, "kind": b"", "shape": value.shape}
            raw = {b"nd": True, b"data": value.tobytes()}
            return raw | {key.encode(): one for key, one in fields.items()}
        file = io.BytesIO()
        np.save(file, value, allow_pickle=True)  # an object array is for the server to refuse
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}

    return msgpack.packb(request, default=array)


def unpacked(data: bytes):
    return msgpack.unpackb(data, object_hook=_read)


def _read(found):
    if "as_npy" in found:
        return np.load(io.BytesIO(found["as_npy"]), allow_pickle=False)
    if found.get(b"nd"):
        return np.ndarray(found[b"shape"], found[b"type"], found[b"data"])
    return found
