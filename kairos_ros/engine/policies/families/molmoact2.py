"""MolmoAct2: a flow-matching action expert on the keys and values of a Molmo VLM."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.sampler import FamilyCode, RowDraws, in_equal_lengths

TEXT = ("input_ids", "attention_mask", "token_type_ids")
PICTURES = ("pixel_values", "image_token_pooling", "image_grids", "image_num_crops")


class MolmoAct2Sampler:
    """Its loop reports no steps: the tap wraps the action expert's `forward_with_context`, which
    gives the velocity, from noise at time 0 to actions at time 1."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.chunk_size = policy.config.n_action_steps
        self.action_dim = policy.config.action_feature.shape[0]
        self._velocities: list[Tensor] = []
        expert = policy._action_expert()
        self._step = expert.forward_with_context
        expert.forward_with_context = self._tapped_step

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        # Padding moves the positions that the action expert attends to.
        lengths = batch["attention_mask"].sum(dim=1).tolist()

        def sample(rows: list[int]) -> tuple[Tensor, Tensor]:
            return self._sample(_rows(batch, rows), [seeds[row] for row in rows])

        return in_equal_lengths(lengths, sample)

    def _sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        self._velocities.clear()
        with RowDraws(seeds):
            chunk = self._policy.predict_action_chunk(batch)
        velocities = torch.stack(self._velocities)
        self._velocities.clear()
        return chunk, velocities[:, :, : self.chunk_size, : self.action_dim] / len(velocities)

    def _tapped_step(self, *args: Any, **kwargs: Any) -> Tensor:
        velocity: Tensor = self._step(*args, **kwargs)
        self._velocities.append(velocity)
        return velocity


def _rows(batch: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    """Some rows of a batch, which are equally long, without their padding."""
    count = len(batch["attention_mask"])
    kept = batch["attention_mask"][rows].bool()
    picked = {key: batch[key][rows][kept].unflatten(0, (len(rows), -1)) for key in TEXT}
    picked["action_dim_is_pad"] = batch["action_dim_is_pad"][rows]
    for key in PICTURES:  # those of a row follow each other
        picked[key] = batch[key].unflatten(0, (count, -1))[rows].flatten(0, 1)
    return picked


def configure(config: Any) -> None:
    """Raises PolicyError for adapters, and for a policy that was trained to write its actions."""
    if config.enable_lora_vlm:
        raise PolicyError("MolmoAct2 with LoRA is not served; merge the adapters, save that")
    if config.action_mode == "discrete":
        raise PolicyError(
            "MolmoAct2 with action_mode 'discrete' writes its actions as text, without steps; use "
            "one that was trained with 'continuous' or 'both'"
        )
    config.inference_action_mode = "continuous"
    config.enable_inference_cuda_graph = False  # in a graph no step could be read
    config.per_episode_seed = False
    config.checkpoint_force_download = False


CODE = FamilyCode(MolmoAct2Sampler, configure=configure)
