"""Requests made ready for a forward pass: checked, their images decoded."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.policies.observation import ImageError, decoded, open_images, size_of
from kairos_ros.transport.messages import EngineDescription, InferFailure, InferRequest

if TYPE_CHECKING:
    from PIL.Image import Image

RGB = ImageReadMode.RGB

Opened = list[dict[str, "Image"]]
"""The images of one request, by name, of every observation that was sent, oldest first."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request that passed the checks, with all observations that the policy reads, oldest
    first; where the robot sent fewer, the oldest is repeated."""

    request: InferRequest
    states: list[np.ndarray]
    """float32 [state_dim] each."""
    images: dict[str, list[np.ndarray]]
    """uint8 [height, width, 3] each."""


class RowReader:
    """Decodes on half of the host's cores; where that is one, in the thread that asks."""

    def __init__(self, description: EngineDescription) -> None:
        self._description = description
        decoders = len(os.sched_getaffinity(0)) // 2
        self._map = ThreadPoolExecutor(decoders, "decoder").map if decoders > 1 else map

    def read(self, requests: Sequence[InferRequest]) -> list[Row | InferFailure]:
        """A row for each request, or why it cannot be inferred."""
        opened = [open_images(request, self._description) for request in requests]
        pixels = iter(
            self._map(
                self._decoded,
                [
                    (key, image, sent.images[key])
                    for request, images in zip(requests, opened, strict=True)
                    if not isinstance(images, InferFailure)
                    for sent, seen in zip(request.observations, images, strict=True)
                    for key, image in seen.items()
                ],
            )
        )
        return [self._row(*one, pixels) for one in zip(requests, opened, strict=True)]

    def _decoded(self, image: tuple[str, "Image", bytes]) -> np.ndarray | ImageError:
        key, opened, encoded = image
        try:
            return _pixels(opened, encoded, size_of(self._description, key))
        except ImageError as error:
            return error

    def _row(
        self,
        request: InferRequest,
        opened: Opened | InferFailure,
        pixels: Iterator[np.ndarray | ImageError],
    ) -> Row | InferFailure:
        """Takes what its images were decoded to from `pixels`."""
        if isinstance(opened, InferFailure):
            return opened
        images: dict[str, list[np.ndarray]] = {}
        for key, one in [(key, next(pixels)) for seen in opened for key in seen]:
            if isinstance(one, ImageError):
                return InferFailure(RefusalCode.BAD_IMAGE, f"image {key}: {one}")
            images.setdefault(key, []).append(one)
        states = self._filled([seen.state for seen in request.observations])
        return Row(request, states, {key: self._filled(seen) for key, seen in images.items()})

    def _filled(self, seen: list[np.ndarray]) -> list[np.ndarray]:
        return [seen[0]] * (self._description.observations - len(seen)) + seen


def _pixels(opened: "Image", encoded: bytes, size: tuple[int, int] | None) -> np.ndarray:
    """As `decoded`, in half the time for a JPEG in colour; of an undamaged one the same pixels."""
    whole = size is None or opened.size == (size[1], size[0])
    if not (whole and opened.format == "JPEG" and opened.mode == "RGB"):
        return decoded(opened, size)
    try:
        pixels = decode_jpeg(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), RGB)
    except RuntimeError as error:
        raise ImageError(f"does not decode: {str(error).partition(chr(10))[0]}") from error
    whole_rows: np.ndarray = pixels.permute(1, 2, 0).numpy()
    return whole_rows
