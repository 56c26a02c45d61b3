"""Rows as tensors: on the device while another batch is computed, numbers when it is their turn."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kairos_ros.engine.policies.rows import Row

Resize = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows of one forward pass, which have the same cameras."""

    rows: list[Row]
    states: Tensor
    """float32 [B, observations, D]."""
    pictures: dict[str, list[Tensor]]
    """uint8 [N, height, width, 3], by camera: all of them, or one after the other where their sizes
    differ."""
    arrived: torch.cuda.Event | None
    """When all of it is on the device; None: it is."""


class BatchTensors:
    """Copies from pinned memory in a stream of its own, on CUDA: beside what is computed."""

    def __init__(
        self,
        device: torch.device,
        state_dims: Mapping[str, int],
        observations: int,
        resize: Resize | None,
    ) -> None:
        """state_dims: of the features that a state is made of. resize: the policy's own, for
        pictures float32 [1, 3, height, width] of different sizes."""
        self._device = device
        self._state_dims = dict(state_dims)
        self._observations = observations
        self._resize = resize
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def copied(self, rows: list[Row]) -> CopiedRows:
        """May be called from any thread."""
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            states = self._to_device(np.array([row.states for row in rows]))
            pictures = {
                key: self._pictures([image for row in rows for image in row.images[key]])
                for key in rows[0].images
            }
            arrived = self._stream.record_event() if self._stream else None
        return CopiedRows(rows, states, pictures, arrived)

    def batch(self, copied: CopiedRows) -> dict[str, Any]:
        """The observations as LeRobot's preprocessors read them: states [B, D] and images
        [B, 3, H, W] in 0..1, or [B, observations, ...], oldest first, where the policy reads
        several."""
        if copied.arrived is not None:
            now = torch.cuda.current_stream(self._device)
            now.wait_event(copied.arrived)
            for tensor in (copied.states, *chain(*copied.pictures.values())):
                tensor.record_stream(now)
        dims = list(self._state_dims.values())
        batch: dict[str, Any] = dict(
            zip(self._state_dims, copied.states.split(dims, dim=-1), strict=True)
        )
        for key, pictures in copied.pictures.items():
            units = [_unit(picture) for picture in pictures]
            if len(units) > 1 and self._resize is not None:
                units = [torch.cat([self._resize(unit) for unit in units])]
            batch[key] = units[0].unflatten(0, (len(copied.rows), self._observations))
        if self._observations == 1:
            batch = {key: value.squeeze(1) for key, value in batch.items()}
        batch["task"] = [row.request.instruction for row in copied.rows]
        return batch

    def _pictures(self, images: list[np.ndarray]) -> list[Tensor]:
        """The policy resizes pictures of one size at a time."""
        if len({image.shape for image in images}) == 1 or self._resize is None:
            stacked = np.stack(images) if len(images) > 1 else images[0][None]
            return [self._to_device(stacked)]
        return [self._to_device(image[None]) for image in images]

    def _to_device(self, array: np.ndarray) -> Tensor:
        host = torch.from_numpy(array)
        if self._stream is None:
            return host
        return host.pin_memory().to(self._device, non_blocking=True)


def _unit(pixels: Tensor) -> Tensor:
    """uint8 [B, H, W, 3] as float32 [B, 3, H, W] in 0..1."""
    return pixels.permute(0, 3, 1, 2).float().div_(255)
