"""msgpack messages of clients, whatever they say with it: bounded, and never pickle.

What comes from a client is first looked at by its structure, since a byte can ask msgpack for an
object of a hundred; then each array is a view of the bytes that came, if its dtype is a plain
number and its shape is as long as its bytes.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import WireError
from kairos_ros.core.wire_check import TooLargeError

MOST_ELEMENTS = 5000
"""Values of one message, counted through all levels; an array is one dictionary of a few."""
MOST_DEPTH = 8
MOST_DIMENSIONS = 5
_NUMBER = re.compile(r"[<>|=]?[biuf][1248]", re.ASCII)

_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Head of binary data or text -> bytes of its length."""
_MANY = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Head of a list or dictionary -> bytes of its count, values per entry."""
_FIXED = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    **dict.fromkeys((0xCC, 0xD0), 1),
    **dict.fromkeys((0xCD, 0xD1), 2),
    **dict.fromkeys((0xCA, 0xCE, 0xD2), 4),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 8),
}


def unpacked(data: bytes, hook: Callable[[dict[Any, Any]], Any]) -> dict[Any, Any]:
    """What a client sent. Raises WireError.

    hook: what a dictionary of the message stands for, itself where for nothing else; it may raise
    WireError.
    """
    check_structure(data)
    try:
        message = msgpack.unpackb(
            data, object_hook=hook, strict_map_key=True, max_ext_len=0, unicode_errors="replace"
        )
    except WireError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"{len(data)} bytes are no msgpack: {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise WireError(f"the message is {type(message).__name__}; it must be a dictionary")
    return message


def check_structure(data: bytes) -> None:
    """Walks over the heads of one msgpack message. Raises TooLargeError for more values or levels
    than an observation has, WireError for bytes that are cut short or go on, and extension types.
    """
    at, total, size = 0, 0, len(data)
    open_: list[int] = [1]
    while open_:
        if not open_[-1]:
            open_.pop()
            continue
        open_[-1] -= 1
        total += 1
        if total > MOST_ELEMENTS:
            raise TooLargeError(
                f"more than {MOST_ELEMENTS} values in one message; send arrays, not lists"
            )
        if at >= size:
            raise WireError(f"a message of {size} bytes is cut short")
        head = data[at]
        at += 1
        many = -1
        if head <= 0x7F or head >= 0xE0 or head in _FIXED:
            at += _FIXED.get(head, 0)
        elif head <= 0x9F:
            many = (head & 15) * (2 if head <= 0x8F else 1)
        elif head <= 0xBF:
            at += head & 31
        elif head in _BYTES:
            width = _BYTES[head]
            at += width + int.from_bytes(data[at : at + width])
        elif head in _MANY:
            width, each = _MANY[head]
            many = int.from_bytes(data[at : at + width]) * each
            at += width
        else:
            raise WireError(f"a value of msgpack type 0x{head:02x}, which is not used here")
        if at > size:
            raise WireError(f"a message of {size} bytes is cut short")
        if many >= 0:
            open_.append(many)
            if len(open_) > MOST_DEPTH + 1:
                raise TooLargeError(f"values nested deeper than {MOST_DEPTH} levels")
    if at != size:
        raise WireError(f"{size - at} bytes after the end of the message")


def array_of(data: Any, dtype: np.dtype[Any], shape: Any) -> NDArray[Any]:
    """A read-only view of `data`. Raises WireError where that is not as long as its shape says."""
    if not isinstance(data, bytes):
        raise WireError(f"the data of an array are {type(data).__name__}, not bytes")
    if (
        not isinstance(shape, list | tuple)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and 0 <= n < 2**31 for n in shape)
    ):
        raise WireError(f"{str(shape)[:80]} is no shape of at most {MOST_DIMENSIONS} dimensions")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise WireError(f"an array of shape {shape}, {dtype}, has {len(data)} bytes")
    if not data:
        return np.zeros(shape, dtype)
    return np.ndarray(buffer=data, dtype=dtype, shape=shape)


def number_type(named: Any) -> np.dtype[Any]:
    """Of plain numbers. Raises WireError for anything else: object arrays are pickles."""
    if isinstance(named, str) and _NUMBER.fullmatch(named):
        try:
            return np.dtype(named)
        except TypeError:
            pass
    raise WireError(f"dtype {str(named)[:40]!r} is refused; send arrays of plain numbers")
