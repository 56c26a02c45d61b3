"""Pictures as cameras tell them, to JPEG as policies get them."""

import numpy as np

from kairos_ros.core.errors import WireError
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg
from kairos_ros.robot.body_error import BodyError
from kairos_ros.transport.picture import open_picture, picture

CHANNELS = {"rgb8": (0, 1, 2), "bgr8": (2, 1, 0), "rgba8": (0, 1, 2), "bgra8": (2, 1, 0)}
"""Where red, green and blue are in a pixel."""
BYTES = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}
"""Per pixel."""


def pixels(encoding: str, height: int, width: int, step: int, data: bytes) -> np.ndarray:
    """uint8 [height, width, 3], RGB, of a sensor_msgs/Image. Raises BodyError for one that is
    encoded otherwise or contradicts itself."""
    size = BYTES.get(encoding)
    if size is None:
        known = ", ".join(BYTES)
        raise BodyError("bad picture", f"image encoding {encoding!r} is none of {known}")
    if not 0 < width * size <= step or len(data) != step * height:
        text = f"an image of {width}x{height} {encoding}, step {step}, has {len(data)} bytes"
        raise BodyError("bad picture", text)
    rows = np.frombuffer(data, np.uint8).reshape(height, step)[:, : width * size]
    frame = rows.reshape(height, width, size)
    if encoding == "mono8":
        return np.repeat(frame, 3, axis=2)
    return np.ascontiguousarray(frame[..., CHANNELS[encoding]])


def as_jpeg(data: bytes, size: tuple[int, int]) -> bytes:
    """A JPEG or PNG as JPEG of `size` (height_px, width_px); as it is where it is one already.

    Raises BodyError for bytes that are no such picture, or one that `open_picture` refuses.
    """
    try:
        image = open_picture(data)
        if image.format == "JPEG" and image.size == (size[1], size[0]):
            return data
        return jpeg(picture(data), size)
    except WireError as error:
        raise BodyError("bad picture", str(error)) from error
