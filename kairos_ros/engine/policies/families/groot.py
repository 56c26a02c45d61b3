"""GR00T N1.7: a flow-matching transformer on the hidden states of a Qwen3-VL."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kairos_ros.engine.policies.families.own_noise import drawn_by_row
from kairos_ros.engine.policies.sampler import FamilyCode, in_equal_lengths


class GrootSampler:
    """Its loop reports no steps: the tap is a forward hook on the action decoder, whose last rows
    are the velocity, from noise at time 0 to actions at time 1."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._head = policy._groot_model.action_head
        horizon = self._head.action_horizon
        self.chunk_size = policy._resolve_prediction_horizon(torch.empty(1, horizon, 0))
        self.action_dim = policy.config.action_feature.shape[0]
        self._velocities: list[Tensor] = []
        self._head.action_decoder.register_forward_hook(self._stepped)

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        # The self-attention over its hidden states does not mask padding.
        lengths = batch["attention_mask"].sum(dim=1).tolist()

        def sample(rows: list[int]) -> tuple[Tensor, Tensor]:
            picked = _rows(batch, rows, lengths[rows[0]])
            return self._sample(picked, [seeds[row] for row in rows])

        return in_equal_lengths(lengths, sample)

    def _sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        self._velocities.clear()
        head = self._head
        with drawn_by_row(seeds, after=head.state_encoder, before=head.action_encoder):
            chunk = self._policy.predict_action_chunk(batch)
        velocities = torch.stack(self._velocities)[:, :, -head.action_horizon :]
        self._velocities.clear()
        return chunk, velocities[:, :, : self.chunk_size, : self.action_dim] / len(velocities)

    def _stepped(self, _module: Any, _inputs: Any, decoded: Tensor) -> None:
        self._velocities.append(decoded)


def _rows(batch: dict[str, Any], rows: list[int], length: int) -> dict[str, Any]:
    """Some rows of a batch that is padded on the left, without their padding."""
    count = len(batch["attention_mask"])
    picked = {key: batch[key][rows] for key in ("state", "embodiment_id")}
    for key in ("input_ids", "attention_mask", "mm_token_type_ids"):
        if key in batch:
            picked[key] = batch[key][rows, -length:]
    for key in ("pixel_values", "image_grid_thw"):  # those of a row follow each other
        picked[key] = batch[key].unflatten(0, (count, -1))[rows].flatten(0, 1)
    return picked


CODE = FamilyCode(GrootSampler)
