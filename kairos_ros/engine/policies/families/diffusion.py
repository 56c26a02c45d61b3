"""LeRobot's diffusion policy, DDIM or DDPM."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kairos_ros.engine.policies.sampler import FamilyCode, RowDraws


def tap_scheduler(scheduler: Any) -> list[Tensor]:
    """The list to which every `step` of a diffusers scheduler adds its change [B, horizon, D]."""
    updates: list[Tensor] = []
    original = scheduler.step

    def step(output: Tensor, time: Any, sample: Tensor, **options: Any) -> Any:
        # float32 whatever the network ran in: DDPM would draw coarser, other noise in bfloat16.
        stepped = original(output.float(), time, sample, **options)
        updates.append(stepped.prev_sample - sample)
        return stepped

    scheduler.step = step
    return updates


class DiffusionSampler:
    """The tap wraps the scheduler's `step`. DDPM draws noise at every step: here from the row's own
    generator."""

    def __init__(self, policy: Any) -> None:
        config = policy.config
        self._policy = policy
        self.chunk_size = config.n_action_steps
        self.action_dim = config.action_feature.shape[0]
        self.observations = config.n_obs_steps
        self._first = config.n_obs_steps - 1
        self._inputs = tuple(config.input_features)
        self._updates = tap_scheduler(policy.diffusion.noise_scheduler)

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        observed = {key: batch[key] for key in self._inputs}
        if self.observations == 1:
            observed = {key: value.unsqueeze(1) for key, value in observed.items()}
        self._updates.clear()
        with RowDraws(seeds):
            chunk = self._policy.predict_action_chunk(observed)
        updates = torch.stack(self._updates)
        self._updates.clear()
        return chunk, updates[:, :, self._first : self._first + self.chunk_size]


CODE = FamilyCode(DiffusionSampler, step=lambda policy: (policy.diffusion.unet, "forward"))
