"""msgpack with NumPy arrays, as Isaac-GR00T's clients pack and unpack it. Never pickle.

An array is `{"__ndarray_class__": true, "as_npy"}` with the bytes that `numpy.save` writes, or in
newer clients `{b"nd": true, b"type", b"kind", b"shape", b"data"}` as the package msgpack-numpy
makes it (gr00t/policy/server_client.py of N1.5 to N1.7). Either is read, and a reply has the form
of its request, since the older clients read the older form only.
"""

import tokenize
from collections.abc import Callable, Mapping
from enum import Enum
from io import BytesIO
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import WireError
from kairos_ros.core.wire_check import printable
from kairos_ros.doors.message import array_of, number_type, unpacked

MOST_HEADER_BYTES = 512
"""Of the description in front of an array; numpy.save writes 118 for any of numbers."""
_NPY, _RAW = "__ndarray_class__", b"nd"
_HEADERS: Mapping[bytes, Callable[..., tuple[Any, bool, np.dtype[Any]]]] = {
    b"\x93NUMPY\x01\x00": np.lib.format.read_array_header_1_0,
    b"\x93NUMPY\x02\x00": np.lib.format.read_array_header_2_0,
}


class ArrayForm(Enum):
    """How arrays travel."""

    NPY = "npy"
    RAW = "raw"


def unpack(data: bytes) -> tuple[dict[Any, Any], ArrayForm]:
    """What a client sent, and how it wants arrays. Raises WireError.

    Arrays are read-only views of what msgpack read.
    """
    form = ArrayForm.NPY

    def hook(found: dict[Any, Any]) -> Any:
        nonlocal form
        if _NPY in found:
            return _npy(found.get("as_npy"))
        if _RAW in found:
            form = ArrayForm.RAW
            return _raw(found)
        return found

    return unpacked(data, hook), form


def pack(reply: Any, form: ArrayForm) -> bytes:
    """For clients. Raises TypeError for what is neither plain data nor an array of numbers."""

    def packable(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            raise TypeError(f"{type(value).__name__} cannot be sent")
        if form is ArrayForm.NPY:
            file = BytesIO()
            np.save(file, value, allow_pickle=False)
            return {_NPY: True, "as_npy": file.getvalue()}
        named, shape, values = value.dtype.str, value.shape, value.tobytes()
        return {_RAW: True, b"type": named, b"kind": b"", b"shape": shape, b"data": values}

    packed: bytes = msgpack.packb(reply, default=packable)
    return packed


def modality(keys: list[str], times: int) -> dict[str, Any]:
    """A ModalityConfig in all forms that clients read: `as_dict` is that of the older DROID
    example, the second marker that of newer ones.

    times: observations, or actions, counted from the present one.
    """
    fields = {"delta_indices": list(range(times)), "modality_keys": keys}
    markers = {"__ModalityConfig_class__": True, "__ModalityConfig__": True}
    return markers | {"as_json": fields, "as_dict": fields}


def _npy(data: Any) -> NDArray[Any]:
    """Looks at the head of the file before anything is made of it."""
    if not isinstance(data, bytes):
        raise WireError(f"an array is {type(data).__name__}, not the bytes that numpy.save writes")
    head = BytesIO(data[: 16 + MOST_HEADER_BYTES])
    try:
        read = _HEADERS[head.read(8)]
        shape, by_columns, dtype = read(head, max_header_size=MOST_HEADER_BYTES)
    except (
        *(ValueError, KeyError, TypeError, SyntaxError, tokenize.TokenError),
        *(MemoryError, RecursionError),  # of the parser, for nested brackets
    ) as error:
        text = printable(str(error), 100)
        raise WireError(f"{len(data)} bytes are no array of numpy.save: {text}") from None
    number_type(dtype.str)
    values = data[head.tell() :]
    return array_of(values, dtype, shape[::-1]).T if by_columns else array_of(values, dtype, shape)


def _raw(found: dict[Any, Any]) -> Any:
    """An array, or a scalar as a number."""
    if found.get(b"kind"):
        raise WireError("arrays of objects or records are refused; send arrays of plain numbers")
    dtype = number_type(found.get(b"type"))
    if found[_RAW] is True:
        return array_of(found.get(b"data"), dtype, found.get(b"shape"))
    return array_of(found.get(b"data"), dtype, ()).item()
