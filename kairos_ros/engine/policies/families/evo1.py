"""EVO1: its own Euler loop, from noise that is uniform in -1..1."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from torch import Tensor

from kairos_ros.engine.policies.sampler import FamilyCode, row_generators


class Evo1Sampler:
    """The tap is LeRobot's own hook for real-time chunking, `model.rtc_processor`. It guides
    nothing: it gives the noise to the first step and keeps the velocity of every step."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        config = policy.config
        config.rtc_config = RTCConfig(enabled=True)  # else the policy takes no `inference_delay`
        self._policy = policy
        self.chunk_size = config.chunk_size
        self.action_dim = config.action_feature.shape[0]

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        noise = row_uniform(seeds, (self.chunk_size, self.action_dim))
        steps = StepRecorder(noise)
        self._policy.model.rtc_processor = steps
        chunk = self._policy.predict_action_chunk(batch, inference_delay=0)
        velocities = torch.stack(steps.velocities)
        return chunk, velocities[..., : self.action_dim] / len(velocities)


class StepRecorder:
    """Stands in for LeRobot's RTCProcessor in one call of the policy."""

    def __init__(self, noise: Tensor) -> None:
        self._noise = noise
        self.velocities: list[Tensor] = []

    def denoise_step(
        self, *, x_t: Tensor, original_denoise_step_partial: Callable[[Tensor], Tensor], **_: Any
    ) -> Tensor:
        """`x_t`: [B, N, padded action]. The velocity points from the chunk to the noise."""
        if not self.velocities:  # x_t is LeRobot's own noise, which it goes on from
            x_t[..., : self._noise.shape[-1]] = self._noise
        backwards = original_denoise_step_partial(x_t)
        self.velocities.append(-backwards)
        return backwards


def row_uniform(seeds: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    """float32 [B, *shape], uniform in -1..1, as `sampler.row_noise` is normal."""
    rows = [torch.rand(shape, generator=generator) for generator in row_generators(seeds)]
    return 2 * torch.stack(rows) - 1


def configure(config: Any) -> None:
    config.use_amp = False  # would autocast to bfloat16 on CUDA, whatever dtype is asked for


CODE = FamilyCode(
    Evo1Sampler, configure=configure, padded_dim=lambda config: int(config.max_action_dim)
)
