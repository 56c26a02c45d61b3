"""FastWAM: a world action model that takes one robot at a time, from that robot's own seed."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.sampler import FamilyCode

OLD_BLOCK = re.compile(r"\bmixtures\.(\w+)\.blocks\.(\d+)\.")


class FastwamSampler:
    """The tap wraps the scheduler's `step`. LeRobot draws the noise as `sampler.row_noise` does,
    from the seed that the batch names."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        config = policy.config
        self._policy = policy
        self.chunk_size = config.action_horizon
        self.action_dim = config.action_dim
        self._updates: list[Tensor] = []
        scheduler = policy.model.infer_action_scheduler
        self._step = scheduler.step
        scheduler.step = self._tapped_step

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        self._updates.clear()
        seed = seeds[0] if len(seeds) == 1 else list(seeds)
        chunk = self._policy.predict_action_chunk({**batch, "seed": seed})
        updates = torch.cat(self._updates)  # all steps of the first robot, then of the next
        self._updates.clear()
        return chunk, updates.reshape(len(chunk), -1, *chunk.shape[1:]).transpose(0, 1)

    def _tapped_step(self, output: Tensor, delta: Tensor, sample: Tensor) -> Tensor:
        after = self._step(output, delta, sample)
        self._updates.append(after - sample)
        return after


def configure(config: Any) -> None:
    """Raises PolicyError for what LeRobot computes on CUDA only."""
    if config.device == "cpu" and config.torch_dtype != "float32":
        raise PolicyError(f"FastWAM does not run in {config.torch_dtype} on a CPU; use float32")
    config.rand_device = "cpu"  # so that a GPU engine draws the same noise as a CPU engine


def renamed(saved: dict[str, Any]) -> dict[str, Any]:
    """Checkpoints of before LeRobot's own layers have the blocks with their expert."""
    return {OLD_BLOCK.sub(r"layers.\2.blocks.\1.", name): value for name, value in saved.items()}


CODE = FamilyCode(FastwamSampler, configure=configure, largest_batch=1, renamed=renamed)
