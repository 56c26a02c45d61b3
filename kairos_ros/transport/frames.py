"""Multipart framing: one versioned msgpack header, then one raw frame per array. Never pickle.

The header is `[version, kind, fields, [[dtype, shape], ...]]`; frame `i + 1` holds the bytes of
array `i` in C order, little endian. Everything is checked against `FrameLimits` before anything of
the size a peer claims is allocated; decoded arrays are read-only views on the received frames.
"""

import math
from collections.abc import Buffer, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from kairos_ros.core.errors import WireError

VERSION = 1

DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("bool", "uint8", "int32", "int64", "float32", "float64")
}
"""What may travel, by wire name; object, void, string and complex arrays may not."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What a decoder accepts from a peer; anything beyond is a WireError."""

    header_bytes: int = 256 * 1024
    frames: int = 4096
    """Frames of one message, header included."""
    message_bytes: int = 256 * 1024 * 1024
    """All frames of one message together."""
    array_bytes: int = 64 * 1024 * 1024
    dims: int = 4
    string_bytes: int = 4096
    """Longest text in the header."""
    items: int = 4096
    """Longest list or map in the header."""


LIMITS = FrameLimits()


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded message: the peer's claims, of which only shapes and sizes are checked."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: tuple[np.ndarray, ...] = ()


def encode(message: Message) -> list[Buffer]:
    """Frames to send. Arrays are not copied where they are contiguous: do not change them after.

    Raises WireError for a dtype that may not travel or a header that msgpack cannot hold.
    """
    heads, bodies = [], []
    for array in message.arrays:
        name = array.dtype.name
        if name not in DTYPES:
            allowed = ", ".join(DTYPES)
            raise WireError(f"arrays of dtype {array.dtype} do not travel; use one of {allowed}")
        body = np.ascontiguousarray(array, dtype=DTYPES[name])
        heads.append([name, list(array.shape)])
        bodies.append(memoryview(body.reshape(-1).view(np.uint8)) if body.size else b"")
    try:
        header = msgpack.packb([VERSION, message.kind, dict(message.fields), heads])
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(
            f"the header of a {message.kind} message cannot be sent: {error}"
        ) from error
    return [header, *bodies]


def decode(frames: Sequence[Buffer], limits: FrameLimits = LIMITS) -> Message:
    """The message in `frames`, or a WireError that says what is wrong with it."""
    if not frames:
        raise WireError("an empty message")
    if len(frames) > limits.frames:
        raise WireError(f"{len(frames)} frames, at most {limits.frames} are accepted")
    sizes = [memoryview(frame).nbytes for frame in frames]
    if sizes[0] > limits.header_bytes:
        raise WireError(f"a header of {sizes[0]} bytes, at most {limits.header_bytes} are accepted")
    if sum(sizes) > limits.message_bytes:
        raise WireError(f"{sum(sizes)} bytes, at most {limits.message_bytes} are accepted")
    kind, fields, heads = _header(frames[0], limits)
    if len(heads) != len(frames) - 1:
        raise WireError(f"the header announces {len(heads)} arrays, {len(frames) - 1} follow")
    arrays = tuple(
        _array(head, frame, size, limits)
        for head, frame, size in zip(heads, frames[1:], sizes[1:], strict=True)
    )
    return Message(kind, fields, arrays)


def take_array(arrays: Iterator[np.ndarray], dtype: type, dims: int, name: str) -> np.ndarray:
    """The next array of a message. Raises WireError for a missing or other one."""
    array = next(arrays, None)
    if array is None:
        raise WireError(f"the array of {name} is missing")
    if array.dtype != dtype or array.ndim != dims:
        raise WireError(
            f"{name} is {array.dtype} of {array.ndim} dimensions, "
            f"expected {np.dtype(dtype)} of {dims}"
        )
    return array


def check_all_taken(arrays: Iterator[np.ndarray]) -> None:
    """Raises WireError for arrays that nothing in the header speaks of."""
    if next(arrays, None) is not None:
        raise WireError("more arrays than the fields speak of")


def _header(frame: Buffer, limits: FrameLimits) -> tuple[str, dict[str, Any], list[Any]]:
    try:
        header = msgpack.unpackb(
            frame,
            raw=False,
            strict_map_key=True,
            max_str_len=limits.string_bytes,
            max_bin_len=0,
            max_ext_len=0,
            max_array_len=limits.items,
            max_map_len=limits.items,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        detail = str(error) or type(error).__name__
        raise WireError(f"the header is not msgpack within the limits: {detail}") from error
    if not isinstance(header, list) or not header:
        raise WireError("the header is not a list")
    if type(header[0]) is not int or header[0] != VERSION:
        raise WireError(f"not wire version {VERSION}, the only one this side speaks")
    if len(header) != 4:
        raise WireError(f"the header has {len(header)} entries, expected 4")
    _, kind, fields, heads = header
    if not isinstance(kind, str) or not isinstance(fields, dict) or not isinstance(heads, list):
        raise WireError("the header is not [version, text, map, list]")
    return kind, fields, heads


def _array(head: Any, frame: Buffer, size: int, limits: FrameLimits) -> np.ndarray:
    if not isinstance(head, list) or len(head) != 2:
        raise WireError("an array is announced as something else than [dtype, shape]")
    name, shape = head
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise WireError(f"an array of a dtype that may not travel; use one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError("an array whose shape is not a list of lengths")
    if len(shape) > limits.dims:
        raise WireError(f"an array of {len(shape)} dimensions, at most {limits.dims} are accepted")
    # Zero-length axes count as one: numpy's own size check ignores them too.
    span = math.prod(max(n, 1) for n in shape) * dtype.itemsize
    if span > limits.array_bytes:
        raise WireError(f"an array of {span} bytes, at most {limits.array_bytes} are accepted")
    if math.prod(shape) * dtype.itemsize != size:
        raise WireError(f"an array of shape {shape} and dtype {name} in a frame of {size} bytes")
    array = np.frombuffer(frame, dtype=dtype).reshape(shape)
    array.flags.writeable = False
    return array
