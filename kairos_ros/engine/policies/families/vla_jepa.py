"""VLA-JEPA: a flow-matching transformer on what a Qwen3-VL makes of its action tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.policy_source import one_line
from kairos_ros.engine.policies.sampler import FamilyCode, RowDraws

WORLD_MODEL = ("model.video_encoder.", "model.video_predictor.")
"""Weights that training alone uses."""


class VlaJepaSampler:
    """Its loop reports no steps: the tap is a forward hook on the action decoder, whose last rows
    are the velocity, from noise at time 0 to actions at time 1."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        head = policy.model.action_model
        self.chunk_size = head.action_horizon
        self.action_dim = policy.config.action_feature.shape[0]
        self._velocities: list[Tensor] = []
        head.action_decoder.register_forward_hook(self._stepped)
        if policy.config.torch_dtype == "float32":  # LeRobot autocasts to bfloat16 all the same
            device = next(policy.parameters()).device.type
            model = policy.model
            plain = torch.autocast(device, enabled=False)
            model._qwen_last_decoder_hidden = plain(model._qwen_last_decoder_hidden)

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        self._velocities.clear()
        with RowDraws(seeds):
            chunk = self._policy.predict_action_chunk(batch)
        velocities = torch.stack(self._velocities)[:, :, -self.chunk_size :]
        self._velocities.clear()
        return chunk, velocities / len(velocities)

    def _stepped(self, _module: Any, _inputs: Any, decoded: Tensor) -> None:
        self._velocities.append(decoded)


def configure(config: Any) -> None:
    """Leaves out the world model, which training alone uses, but for what the prompt depends on.

    Raises PolicyError for an encoder whose configuration does not load.
    """
    if config.enable_world_model:
        try:
            encoder = AutoConfig.from_pretrained(config.jepa_encoder_name)
            config.jepa_tubelet_size = encoder.tubelet_size
        except Exception as error:  # whatever transformers raises about a folder
            raise PolicyError(
                f"the configuration of jepa_encoder_name {config.jepa_encoder_name!r:.200} does "
                f"not load: {one_line(error)}"
            ) from error
        config.enable_world_model = False


def renamed(saved: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in saved.items() if not name.startswith(WORLD_MODEL)}


CODE = FamilyCode(
    VlaJepaSampler,
    configure=configure,
    renamed=renamed,
    step=lambda policy: (policy.model.action_model.model, "forward"),
)
