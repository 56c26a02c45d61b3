"""A camera's picture, from its bytes."""

import io

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import WireError

FORMATS = ("JPEG", "PNG")
MOST_PX = 4096 * 4096
"""Larger pictures are refused before they are decoded."""


def picture(encoded: bytes) -> NDArray[np.uint8]:
    """uint8 [height, width, 3], RGB. Raises WireError for anything but a whole JPEG or PNG."""
    import PIL.Image

    try:
        image = PIL.Image.open(io.BytesIO(encoded), formats=FORMATS)
        width, height = image.size
        if width * height <= MOST_PX:
            return np.array(image.convert("RGB"))
    except Exception as error:  # a decoder fed with hostile bytes raises whatever it likes
        raise WireError(f"picture of {len(encoded)} bytes does not decode: {error}") from error
    raise WireError(f"picture of {height} x {width} px, at most {MOST_PX} px in all are accepted")
