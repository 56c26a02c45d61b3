"""Is a request one that the policy can answer? Images are untrusted bytes until decoded here."""

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from kairos_ros.core.errors import RefusalCode
from kairos_ros.transport.messages import EngineDescription, InferFailure, InferRequest

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG")


class ImageError(ValueError):
    """The bytes are not an image of the expected size."""


def refusal(request: InferRequest, description: EngineDescription) -> InferFailure | None:
    """Why the request cannot be inferred, or None. Reads image headers, not pixels."""
    known = description.instructions
    if known is not None and request.instruction not in known:
        return InferFailure(
            RefusalCode.UNKNOWN_INSTRUCTION,
            f"instruction {request.instruction!r:.120}; this policy knows {', '.join(known)}",
        )
    if request.state.shape != (description.state_dim,):
        return InferFailure(
            RefusalCode.BAD_STATE,
            f"state of shape {request.state.shape}, the policy expects ({description.state_dim},)",
        )
    finite = np.isfinite(request.state)
    if not finite.all():
        first = int(np.argmin(finite))
        return InferFailure(RefusalCode.NOT_FINITE, f"state[{first}] is {request.state[first]}")
    for key, size in description.images.items():
        if key not in request.images:
            sent = ", ".join(request.images) or "none"
            return InferFailure(RefusalCode.BAD_IMAGE, f"image {key} is missing; sent were {sent}")
        try:
            _open(request.images[key], size, key in request.shrunk)
        except ImageError as error:
            return InferFailure(RefusalCode.BAD_IMAGE, f"image {key}: {error}")
    return None


def decode_image(
    encoded: bytes, size: tuple[int, int], shrunk: bool = False
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [height, width, 3], RGB. Raises ImageError for anything but an image of that size or,
    where it was `shrunk` on the way, of a smaller one."""
    image = _open(encoded, size, shrunk)
    try:
        return np.array(_enlarged(image.convert("RGB"), size))
    except Exception as error:  # a decoder fed with hostile bytes raises whatever it likes
        raise ImageError(f"does not decode: {error}") from error


def _enlarged(image: "Image", size: tuple[int, int]) -> "Image":
    height, width = size
    return image if image.size == (width, height) else image.resize((width, height))


def _open(encoded: bytes, size: tuple[int, int], shrunk: bool = False) -> "Image":
    import PIL.Image

    try:
        image = PIL.Image.open(io.BytesIO(encoded), formats=FORMATS)
    except Exception as error:  # as above
        raise ImageError(f"{len(encoded)} bytes that are neither JPEG nor PNG") from error
    width, height = image.size
    if (height, width) != size and not (shrunk and height <= size[0] and width <= size[1]):
        raise ImageError(
            f"{height} x {width} px (height x width), the policy expects {size[0]} x {size[1]}"
        )
    return image
