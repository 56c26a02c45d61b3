"""The frames of a message in one: for links, such as a WebSocket, whose messages have one part.

Little endian: the number of frames (uint32), the length of each (uint32), then the frames.
"""

import struct

from kairos_ros.core.errors import WireError
from kairos_ros.transport.frames import LIMITS, FrameLimits, Message, decode, encode

_NUMBER = struct.Struct("<I")


def pack(message: Message) -> bytes:
    """Raises WireError as `frames.encode`."""
    frames = [memoryview(frame) for frame in encode(message)]
    sizes = struct.pack(f"<{len(frames)}I", *(frame.nbytes for frame in frames))
    return b"".join([_NUMBER.pack(len(frames)), sizes, *frames])


def unpack(data: bytes, limits: FrameLimits = LIMITS) -> Message:
    """Arrays are read-only views of `data`. Raises WireError."""
    if len(data) < _NUMBER.size:
        raise WireError(f"a message of {len(data)} bytes is cut short")
    (count,) = _NUMBER.unpack_from(data)
    if count > limits.frames:
        raise WireError(f"{count} frames, at most {limits.frames} are accepted")
    at = _NUMBER.size * (1 + count)
    if len(data) < at:
        raise WireError(f"a message of {len(data)} bytes is cut short")
    sizes = struct.unpack_from(f"<{count}I", data, _NUMBER.size)
    if at + sum(sizes) != len(data):
        raise WireError(f"frames of {sum(sizes)} bytes in a message that has {len(data) - at}")
    view, frames = memoryview(data), []
    for size in sizes:
        frames.append(view[at : at + size])
        at += size
    return decode(frames, limits)
