"""The engine that runs a LeRobot policy: many robots, one forward pass."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kairos_ros.core.errors import PolicyError, RefusalCode
from kairos_ros.engine.observation import ImageError, decode_image, refusal
from kairos_ros.engine.policy import LoadedPolicy, load_policy
from kairos_ros.engine.seam import EngineLostError, EngineOptions, Progress
from kairos_ros.engine.taps import find_sampler
from kairos_ros.transport.messages import (
    EngineDescription,
    InferFailure,
    InferOutcome,
    InferRequest,
    InferResult,
)

log = logging.getLogger(__name__)

MEASURED = 3
"""Timed passes per batch size."""
STATE_FEATURES = ("observation.state", "observation.environment_state")
"""A request's state is these features, where the policy has them, one after the other."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request that passed the checks, its images decoded."""

    request: InferRequest
    images: dict[str, np.ndarray]
    """uint8 [height, width, 3]."""


def load_policy_engine(options: EngineOptions, progress: Progress) -> "PolicyEngine":
    """A verified policy, warmed up with every batch size. Raises PolicyError or ConfigError."""
    torch.set_num_threads(options.threads)
    engine = PolicyEngine(load_policy(options, progress), options.max_batch)
    for size in range(1, options.max_batch + 1):
        progress(f"warming up: batch {size} of {options.max_batch}")
        engine.warm_up(size)
    progress("measuring latency")
    engine.measure()
    return engine


class PolicyEngine:
    """Engine of one LeRobot policy. See `seam.Engine`."""

    def __init__(self, loaded: LoadedPolicy, max_batch: int) -> None:
        self._loaded = loaded
        self._sampler = find_sampler(loaded.policy)
        config = loaded.config
        self._state_dims = {
            name: config.input_features[name].shape[0]
            for name in STATE_FEATURES
            if name in config.input_features
        }
        self.description = EngineDescription(
            policy_id=loaded.policy_id,
            policy_type=config.type,
            state_dim=sum(self._state_dims.values()),
            images={
                key: (feature.shape[1], feature.shape[2])
                for key, feature in config.image_features.items()
                if "empty_camera" not in key  # the policy fills those in by itself
            },
            action_dim=self._sampler.action_dim,
            chunk_size=self._sampler.chunk_size,
            steps=0,  # what the sampler does, known after a first pass
            instructions=tuple(config.instructions) if hasattr(config, "instructions") else None,
            device=_device_name(loaded.device),
            dtype=loaded.dtype,
            max_batch=max_batch,
        )
        steps = self.warm_up(1)
        self.description = replace(self.description, steps=steps, action_scale=self._scale())

    def infer(self, requests: Sequence[InferRequest]) -> list[InferOutcome]:
        """One outcome per request, in order. Raises EngineLostError when the device is lost."""
        prepared = [self._prepare(request) for request in requests]
        rows = [row for row in prepared if isinstance(row, Row)]
        outcomes = iter(self._infer_rows(rows))
        return [next(outcomes) if isinstance(row, Row) else row for row in prepared]

    def warm_up(self, size: int) -> int:
        """Runs a batch of zero observations; returns the number of sampler steps.

        Raises PolicyError when that does not work.
        """
        described = self.description
        blank = {key: np.zeros((*hw, 3), np.uint8) for key, hw in described.images.items()}
        request = InferRequest(
            robot="",
            session="",
            task="",
            round=0,
            attempt=0,
            seed=0,
            instruction=described.instructions[0] if described.instructions else "warm up",
            state=np.zeros(described.state_dim, np.float32),
        )
        try:
            chunk, updates = self._forward([Row(request, blank)] * size)
        except Exception as error:
            raise PolicyError(
                f"{described.policy_id} fails on a zero observation: {error}"
            ) from error
        shape = (size, described.chunk_size, described.action_dim)
        if chunk.shape != shape or updates.shape[1:] != shape:
            raise PolicyError(
                f"{described.policy_id} gives chunks {chunk.shape} and updates {updates.shape}, "
                f"its configuration says {shape}"
            )
        if not np.isfinite(chunk).all():
            raise PolicyError(f"{described.policy_id} gives NaN or infinity on a zero observation")
        return len(updates)

    def measure(self) -> None:
        """Notes in the description how long batches of 1, 2, 4, ... take, without image decoding:
        the fastest of a few, to see through what else the machine does. Call it when warm."""
        largest = self.description.max_batch
        sizes = sorted({2**power for power in range(largest.bit_length())} | {largest})
        seconds = dict.fromkeys(sizes, float("inf"))
        for _ in range(MEASURED):
            for size in sizes:
                start = time.perf_counter()
                self.warm_up(size)
                seconds[size] = min(seconds[size], time.perf_counter() - start)
        self.description = replace(self.description, warmup=tuple(seconds.items()))

    def _scale(self) -> tuple[float, ...] | None:
        """Robot units per normalised unit: what the (affine) postprocessor makes of 1 and of 0."""
        normalised = torch.zeros(2, 1, self.description.action_dim, device=self._loaded.device)
        normalised[1] = 1.0
        zero, one = self._loaded.postprocess(normalised).float().cpu().numpy()[:, 0]
        scale = np.abs(one - zero)
        usable = np.isfinite(scale).all() and (scale > 0).all()
        return tuple(scale.tolist()) if usable else None

    def _prepare(self, request: InferRequest) -> Row | InferFailure:
        bad = refusal(request, self.description)
        if bad is not None:
            return bad
        images = {}
        for key, size in self.description.images.items():
            try:
                images[key] = decode_image(request.images[key], size, key in request.shrunk)
            except ImageError as error:
                return InferFailure(RefusalCode.BAD_IMAGE, f"image {key}: {error}")
        return Row(request, images)

    def _infer_rows(self, rows: list[Row]) -> list[InferOutcome]:
        """All rows at once; if that fails, each alone, so that the culprit fails alone."""
        if not rows:
            return []
        try:
            chunk, updates = self._forward(rows)
        except Exception as error:  # whatever a policy raises
            if isinstance(error, torch.AcceleratorError):
                raise EngineLostError(f"the device failed: {error}") from error
            if len(rows) > 1:
                log.warning("a batch of %d failed (%s): trying rows alone", len(rows), error)
                return [outcome for row in rows for outcome in self._infer_rows([row])]
            reason = f"the policy failed: {type(error).__name__}: {error}"
            return [InferFailure(RefusalCode.ENGINE_FAILED, reason)]
        return [_outcome(chunk[row], updates[:, row]) for row in range(len(rows))]

    @torch.inference_mode()
    def _forward(self, rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
        """Chunk float32 [B, N, D] in robot units and updates float32 [K, B, N, D]."""
        loaded = self._loaded
        batch = loaded.preprocess(self._batch(rows))
        with torch.autocast(loaded.device.type, torch.bfloat16, enabled=loaded.autocast):
            chunk, updates = self._sampler.sample(batch, [row.request.seed for row in rows])
        chunk = loaded.postprocess(chunk.float())
        return chunk.float().cpu().numpy(), updates.float().cpu().numpy()

    def _batch(self, rows: list[Row]) -> dict[str, Any]:
        """The observations as LeRobot's preprocessors read them: images [B, 3, H, W] in 0..1."""
        device = self._loaded.device
        states = torch.from_numpy(np.stack([row.request.state for row in rows])).to(device)
        batch: dict[str, Any] = dict(
            zip(
                self._state_dims,
                states.split(list(self._state_dims.values()), dim=1),
                strict=True,
            )
        )
        for key in self.description.images:
            pixels = torch.from_numpy(np.stack([row.images[key] for row in rows])).to(device)
            batch[key] = pixels.permute(0, 3, 1, 2).float() / 255
        batch["task"] = [row.request.instruction for row in rows]
        return batch


def _outcome(chunk: np.ndarray, updates: np.ndarray) -> InferOutcome:
    if np.isfinite(chunk).all() and np.isfinite(updates).all():
        return InferResult(np.ascontiguousarray(chunk), np.ascontiguousarray(updates))
    return InferFailure(RefusalCode.ENGINE_FAILED, "the policy gave NaN or infinity")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)
