"""LeRobot's multi-task diffusion transformer: diffusion (DDPM, DDIM) or flow (Euler, RK4)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kairos_ros.engine.policies.families.diffusion import tap_scheduler
from kairos_ros.engine.policies.sampler import FamilyCode, RowDraws, with_steps


class MultiTaskDitSampler:
    """Diffusion: the tap wraps the scheduler's `step`. Flow: it lets LeRobot's integrator, Euler or
    RK4, do one interval at a time. All noise, that of DDPM's steps too, is the row's own."""

    def __init__(self, policy: Any) -> None:
        config, objective = policy.config, policy.objective
        self._policy = policy
        self.chunk_size = config.n_action_steps
        self.action_dim = config.action_feature.shape[0]
        self.observations = config.n_obs_steps
        self._first = config.n_obs_steps - 1
        self._updates = (
            tap_scheduler(objective.noise_scheduler)
            if config.is_diffusion
            else tap_integrator(objective, f"_{config.integration_method}_integrate")
        )

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        self._updates.clear()
        with RowDraws(seeds):
            # LeRobot's predict_action_chunk reads the queues of one robot that select_action fills
            chunk = self._policy._generate_actions(with_steps(self._policy.config, batch))
        updates = torch.stack(self._updates)
        self._updates.clear()
        return chunk, updates[:, :, self._first : self._first + self.chunk_size]


def tap_integrator(objective: Any, name: str) -> list[Tensor]:
    """The list to which every interval of a method of LeRobot adds its change [B, horizon, D]."""
    updates: list[Tensor] = []
    original = getattr(objective, name)

    def integrate(model: Any, x: Tensor, times: Tensor, conditioning: Tensor) -> Tensor:
        for interval in times.unfold(0, 2, 1):
            moved = original(model, x, interval, conditioning)
            updates.append(moved - x)
            x = moved
        return x

    setattr(objective, name, integrate)
    return updates


CODE = FamilyCode(MultiTaskDitSampler, step=lambda policy: (policy.noise_predictor, "forward"))
