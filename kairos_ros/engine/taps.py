"""Samplers with an update tap: a chunk, and what every sampler step changed (000 §3.1).

A tap only listens: with it the policy computes bit for bit what it computes without.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.noise import row_generators, row_noise


class Sampler(Protocol):
    """Draws action chunks from a policy."""

    chunk_size: int
    action_dim: int

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        """`batch`: preprocessed, one row per robot; `seeds`: one per row.

        Returns the chunk [B, N, D] and updates [K, B, N, D], both in the model's action space:
        the noise of a row plus its K updates is its chunk.
        """
        ...


def find_sampler(policy: nn.Module) -> Sampler:
    """The sampler for a policy's family. Raises PolicyError for one that cannot be tapped."""
    if hasattr(getattr(policy, "model", None), "rtc_processor"):
        return FlowSampler(policy)
    if hasattr(getattr(policy, "diffusion", None), "noise_scheduler"):
        return DiffusionSampler(policy)
    raise PolicyError(
        f"policies of type {policy.config.type!r} have no update tap; known are diffusion and "
        "those that report their steps to model.rtc_processor (pi0, pi05, smolvla, flow_mlp)"
    )


class FlowSampler:
    """pi0, pi05, smolvla and whoever else integrates with LeRobot's `euler_integrate`.

    The tap is LeRobot's own hook for real-time chunking, `model.rtc_processor`.
    """

    def __init__(self, policy: Any) -> None:
        config = policy.config
        self._policy = policy
        self._steps = StepRecorder()
        policy.model.rtc_processor = self._steps
        self.chunk_size = config.chunk_size
        self.action_dim = config.action_feature.shape[0]
        # VLAs denoise padded actions; the padding is cut off below.
        self._noise_shape = (self.chunk_size, getattr(config, "max_action_dim", self.action_dim))

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        device = next(self._policy.parameters()).device
        noise = row_noise(row_generators(seeds), self._noise_shape, device)
        self._steps.velocities.clear()
        chunk = self._policy.predict_action_chunk(batch, noise=noise)
        velocities = torch.stack(self._steps.velocities)
        self._steps.velocities.clear()
        return chunk, velocities[..., : self.action_dim] * (-1.0 / len(velocities))


class StepRecorder:
    """Stands in for LeRobot's RTCProcessor and keeps the velocity of every Euler step."""

    def __init__(self) -> None:
        self.velocities: list[Tensor] = []

    def is_debug_enabled(self) -> bool:
        return True

    def track(self, *, v_t: Tensor, **_: Any) -> None:
        self.velocities.append(v_t)


class DiffusionSampler:
    """LeRobot's diffusion policy, DDIM or DDPM: the tap wraps the scheduler's `step`.

    DDPM draws noise at every step: here from the row's own generator. The policy was trained on
    the last `n_obs_steps` observations; a request carries one, which stands for all of them, as
    LeRobot itself does at the start of an episode.
    """

    def __init__(self, policy: Any) -> None:
        config = policy.config
        self._policy = policy
        self.chunk_size = config.n_action_steps
        self.action_dim = config.action_feature.shape[0]
        self._noise_shape = (config.horizon, self.action_dim)
        self._first = config.n_obs_steps - 1
        self._inputs = tuple(config.input_features)
        self._updates: list[Tensor] = []
        self._generators: list[torch.Generator] = []
        scheduler = policy.diffusion.noise_scheduler
        self._step = scheduler.step
        scheduler.step = self._tapped_step

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        device = next(self._policy.parameters()).device
        self._generators = row_generators(seeds)
        noise = row_noise(self._generators, self._noise_shape, device)
        self._updates.clear()
        chunk = self._policy.predict_action_chunk(self._history(batch), noise=noise)
        updates = torch.stack(self._updates)
        self._updates.clear()
        return chunk, updates[:, :, self._first : self._first + self.chunk_size]

    def _history(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Every input [B, ...] as [B, n_obs_steps, ...]."""
        return {
            key: batch[key].unsqueeze(1).repeat_interleave(self._first + 1, dim=1)
            for key in self._inputs
        }

    def _tapped_step(self, output: Tensor, time: Any, sample: Tensor, **options: Any) -> Any:
        # float32 whatever the network ran in: DDPM would draw coarser, other noise in bfloat16.
        options["generator"] = self._generators
        step = self._step(output.float(), time, sample, **options)
        self._updates.append(step.prev_sample - sample)
        return step
