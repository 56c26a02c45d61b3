"""EO-1: Qwen2.5-VL with a flow-matching head on its action tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kairos_ros.engine.policies.sampler import FamilyCode, row_generators, row_noise


class EO1Sampler:
    """Its loop reports no steps: the tap is a forward hook on `model.action_out_proj`, which gives
    the velocity, and the noise comes from `model.sample_noise` of this policy."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.chunk_size = policy.config.chunk_size
        self.action_dim = policy.config.action_feature.shape[0]
        self._velocities: list[Tensor] = []
        self._generators: list[torch.Generator] = []
        policy.model.sample_noise = self._noise
        policy.model.action_out_proj.register_forward_hook(self._stepped)

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        self._generators = row_generators(seeds)
        self._velocities.clear()
        chunk = self._policy.predict_action_chunk(batch)
        velocities = torch.stack(self._velocities)
        self._velocities.clear()
        return chunk, velocities[..., : self.action_dim] * (-1.0 / len(velocities))

    def _noise(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        return row_noise(self._generators, tuple(shape[1:]), device)

    def _stepped(self, _module: Any, _inputs: Any, velocity: Tensor) -> None:
        self._velocities.append(velocity)


def configure(config: Any) -> None:
    # LeRobot makes the backbone of a policy that is new from pretrained weights, which would be
    # fetched only to be overwritten, and that of a trained one from `vlm_config`.
    config.pretrained_path = config.pretrained_path or config.vlm_base
    if config.dtype == "auto":
        config.dtype = str(config.vlm_config.get("dtype") or torch.float32).removeprefix("torch.")


CODE = FamilyCode(EO1Sampler, configure)
