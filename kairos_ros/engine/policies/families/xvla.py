"""X-VLA: predicts the actions themselves at every step, from noise mixed with the last prediction.

A prediction is no velocity, so the updates are the differences of what the policy holds: x at the
time t of a step is t · noise + (1 - t) · prediction, and at the end the chunk.
"""

from collections.abc import Sequence
from typing import Any

import torch
from lerobot.policies.common.vla_utils import resize_with_pad
from lerobot.policies.xvla import modeling_xvla
from lerobot.utils.constants import IMAGENET_STATS
from torch import Tensor

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.families.own_noise import drawn_by_row
from kairos_ros.engine.policies.sampler import FamilyCode, Resize


class XVLASampler:
    """The tap is a forward hook on `model.transformer`, which runs once per step."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._model = policy.model
        self.chunk_size = policy.config.chunk_size
        self.action_dim = policy.config.action_feature.shape[0]
        self._held: list[Tensor] = []
        self._start: Tensor | None = None
        self._predicted: Tensor | None = None
        self._model.transformer.register_forward_hook(self._stepped, with_kwargs=True)

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        self._held.clear()
        self._start = self._predicted = None
        encoder = self._model.vlm.language_model.encoder
        with drawn_by_row(seeds, after=encoder, before=self._model.transformer):
            chunk = self._policy.predict_action_chunk(batch)
        if chunk.shape[-1] != self.action_dim:
            raise PolicyError(
                f"its action mode {self._policy.config.action_mode!r} gives {chunk.shape[-1]} "
                f"values per action, its configuration says {self.action_dim}"
            )
        held = torch.stack([*self._held, chunk])
        return chunk, held[1:] - held[:-1]

    def _stepped(self, _module: Any, _args: Any, given: dict[str, Tensor], output: Tensor) -> None:
        # As commanded: a gripper, masked in the input, comes out of `postprocess` in 0..1.
        if self._start is None or self._predicted is None:
            self._start = given["action_with_noise"][..., : self.action_dim]
            self._predicted = torch.zeros_like(self._start)
        time = given["t"].view(-1, 1, 1)
        self._held.append(self._start * time + self._predicted * (1 - time))
        self._predicted = self._model.action_space.postprocess(output.clone())


def own_resize(config: Any) -> Resize:
    """By the function that the policy uses itself, which pads with the mean colour."""
    height, width = config.resize_imgs_with_padding
    mean = torch.tensor(IMAGENET_STATS["mean"])
    std = torch.tensor(IMAGENET_STATS["std"])

    def resize(picture: Tensor) -> Tensor:
        centre, spread = mean.to(picture.device), std.to(picture.device)
        resized = resize_with_pad((picture - centre) / spread, height, width, pad_value=0.0)
        return (resized * spread + centre).clamp(0, 1)

    return resize


def renamed(saved: dict[str, Any]) -> dict[str, Any]:
    """Checkpoints from before Florence-2 came to transformers name its weights otherwise."""
    if modeling_xvla._is_vendored_florence_state_dict(saved):
        saved = modeling_xvla._remap_vendored_florence_state_dict(saved)
    return saved


CODE = FamilyCode(
    XVLASampler,
    resize=own_resize,
    renamed=renamed,
    step=lambda policy: (policy.model.transformer, "forward"),
)
