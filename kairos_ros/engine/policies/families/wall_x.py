"""Wall-X: flow matching from noise to actions, in bfloat16."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.sampler import FamilyCode, row_generators, row_noise


class WallXSampler:
    """The tap wraps the embedding of the actions, which begins every step with where they are. It
    gives the noise to the first step."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        config = policy.config
        self._policy = policy
        self.chunk_size = config.chunk_size
        self.action_dim = config.action_feature.shape[0]
        self._noise = torch.empty(0)
        self._actions: list[Tensor] = []
        embedding = policy.model.action_preprocessor
        self._step = embedding.step
        embedding.step = self._tapped_step

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        device = next(self._policy.parameters()).device
        width = self._policy.config.max_action_dim
        self._noise = row_noise(row_generators(seeds), (self.chunk_size, width), device)
        self._actions.clear()
        chunk = self._policy.predict_action_chunk(batch)
        actions = torch.stack([*(x[..., : self.action_dim] for x in self._actions), chunk])
        self._actions.clear()
        return chunk, actions.diff(dim=0)

    def _tapped_step(self, timestep: Tensor, noisy_action: Tensor, dof_mask: Tensor) -> Tensor:
        if not self._actions:  # noisy_action is LeRobot's own noise, which it goes on from
            noisy_action.copy_(self._noise)
        self._actions.append(noisy_action)
        embedded: Tensor = self._step(
            timestep=timestep, noisy_action=noisy_action, dof_mask=dof_mask
        )
        return embedded


def configure(config: Any) -> None:
    """Raises PolicyError for the mode that has no steps and whose tokenizer is code of the hub."""
    if config.prediction_mode != "diffusion":
        raise PolicyError(
            f"Wall-X with prediction_mode {config.prediction_mode!r} is not served; use diffusion"
        )


CODE = FamilyCode(WallXSampler, configure=configure, dtype="bfloat16")
