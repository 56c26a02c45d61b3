"""msgpack with NumPy arrays, as openpi's clients pack and unpack it. Never pickle.

An array is a dictionary `{b"__ndarray__": true, b"data", b"dtype", b"shape"}`, a NumPy scalar one
with `b"__npgeneric__"` (openpi_client/msgpack_numpy.py).
"""

import re
from typing import Any

import msgpack
import numpy as np

from kairos_ros.core.errors import WireError
from kairos_ros.doors.message import array_of, number_type, unpacked

_TEXT = re.compile(r"[<>|=]?U\d{1,6}", re.ASCII)
_ARRAY, _SCALAR = b"__ndarray__", b"__npgeneric__"


def unpack(data: bytes) -> dict[Any, Any]:
    """What a client sent. Arrays are read-only views of what msgpack read. Raises WireError."""
    return unpacked(data, _hook)


def pack(message: dict[str, Any]) -> bytes:
    """For clients. Raises TypeError for what is neither plain data nor an array of numbers."""
    packed: bytes = msgpack.packb(message, default=_packable)
    return packed


def _hook(found: dict[Any, Any]) -> Any:
    if _ARRAY in found:
        dtype = number_type(found.get(b"dtype"))
        return array_of(found.get(b"data"), dtype, found.get(b"shape"))
    if _SCALAR in found:
        return _scalar(found)
    return found


def _scalar(found: dict[Any, Any]) -> Any:
    value, named = found.get(b"data"), found.get(b"dtype")
    if isinstance(value, str) and isinstance(named, str) and _TEXT.fullmatch(named):
        return value
    dtype = number_type(named)
    if type(value) not in (bool, int, float):
        raise WireError(f"a scalar of {dtype} is {type(value).__name__}")
    try:
        with np.errstate(over="ignore"):
            return dtype.type(value).item()
    except (OverflowError, ValueError):
        raise WireError(f"{value} is no {dtype}") from None


def _packable(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {
            _ARRAY: True,
            b"data": value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    raise TypeError(f"{type(value).__name__} cannot be sent")
