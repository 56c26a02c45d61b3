"""Is a request one that the policy can answer? Images are untrusted bytes until decoded here."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.core.exchange import Observation
from kairos_ros.transport.messages import EngineDescription, InferFailure, InferRequest
from kairos_ros.transport.picture import as_rgb, open_picture

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 3840 * 2160
"""Of an image whose size is free."""


class ImageError(ValueError):
    """The bytes are not an image of the expected size."""


def refusal(request: InferRequest, description: EngineDescription) -> InferFailure | None:
    """Why the request cannot be inferred, or None. Reads image headers, not pixels."""
    found = open_images(request, description)
    return found if isinstance(found, InferFailure) else None


def open_images(
    request: InferRequest, description: EngineDescription
) -> list[dict[str, "Image"]] | InferFailure:
    """The images that the policy reads, of every observation that was sent, oldest first, not
    decoded yet, or why the request cannot be inferred. All observations have the same cameras."""
    known = description.instructions
    if known is not None and request.instruction not in known:
        return InferFailure(
            RefusalCode.UNKNOWN_INSTRUCTION,
            f"instruction {request.instruction!r:.120}; this policy knows {', '.join(known)}",
        )
    if len(request.earlier) >= description.observations:
        return InferFailure(
            RefusalCode.MALFORMED,
            f"{len(request.earlier) + 1} observations, the policy reads {description.observations}",
        )
    for what, actions in (("committed", request.committed), ("executed", request.executed)):
        if len(actions) and actions.shape[1] != description.action_dim:
            return InferFailure(
                RefusalCode.BAD_STATE,
                f"{what} actions of {actions.shape[1]} numbers, the policy's have "
                f"{description.action_dim}",
            )
        if not np.isfinite(actions).all():
            return InferFailure(RefusalCode.NOT_FINITE, f"a {what} action is NaN or infinite")
    opened = []
    for seen in request.observations:
        if seen.images.keys() != request.images.keys():
            return InferFailure(RefusalCode.BAD_IMAGE, "an earlier observation of other cameras")
        images = _opened(seen, request.shrunk, description)
        if isinstance(images, InferFailure):
            return images
        opened.append(images)
    return opened


def _opened(
    seen: Observation, shrunk: Collection[str], description: EngineDescription
) -> dict[str, "Image"] | InferFailure:
    if seen.state.shape != (description.state_dim,):
        return InferFailure(
            RefusalCode.BAD_STATE,
            f"state of shape {seen.state.shape}, the policy expects ({description.state_dim},)",
        )
    finite = np.isfinite(seen.state)
    if not finite.all():
        first = int(np.argmin(finite))
        return InferFailure(RefusalCode.NOT_FINITE, f"state[{first}] is {seen.state[first]}")
    sent = seen.images.keys() & description.images.keys()
    images = {}
    for key in description.images:
        if key in sent:
            try:
                images[key] = _open(seen.images[key], size_of(description, key), key in shrunk)
            except ImageError as error:
                return InferFailure(RefusalCode.BAD_IMAGE, f"image {key}: {error}")
        elif not (sent and description.images_optional):
            told = ", ".join(seen.images) or "none"
            return InferFailure(RefusalCode.BAD_IMAGE, f"image {key} is missing; sent were {told}")
    return images


def size_of(description: EngineDescription, image: str) -> tuple[int, int] | None:
    """(height_px, width_px) that an image must have; None: any."""
    return None if description.any_image_size else description.images[image]


def decode_image(
    encoded: bytes, size: tuple[int, int] | None, shrunk: bool = False
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [height, width, 3], RGB. Raises ImageError for anything but an image of that size
    (None: of any up to `MAX_PIXELS`) or, where it was `shrunk` on the way, of a smaller one."""
    return decoded(_open(encoded, size, shrunk), size)


def decoded(image: "Image", size: tuple[int, int] | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [height, width, 3], RGB, enlarged to `size`. Raises ImageError for damaged ones."""
    try:
        return np.array(_enlarged(as_rgb(image), size))
    except Exception as error:  # a decoder fed with hostile bytes raises whatever it likes
        raise ImageError(f"does not decode: {error}") from error


def _enlarged(image: "Image", size: tuple[int, int] | None) -> "Image":
    if size is None or image.size == (size[1], size[0]):
        return image
    return image.resize((size[1], size[0]))


def _open(encoded: bytes, size: tuple[int, int] | None, shrunk: bool = False) -> "Image":
    try:
        image = open_picture(encoded)
    except WireError as error:
        raise ImageError(str(error)) from error
    width, height = image.size
    if size is None:
        if width * height > MAX_PIXELS:
            raise ImageError(f"{height} x {width} px are more than {MAX_PIXELS} pixels")
        return image
    if (height, width) != size and not (shrunk and height <= size[0] and width <= size[1]):
        raise ImageError(
            f"{height} x {width} px (height x width), the policy expects {size[0]} x {size[1]}"
        )
    return image
