"""A LeRobot policy whose actions tell what each of its cameras saw.

A third-party plugin as LeRobot defines it: with this folder on PYTHONPATH, engines find it through
its metadata. Every action of a chunk is `gain` times the mean colours of the pictures, camera by
camera in the order of the configuration; so many channels of each as fit into the action.
"""

from dataclasses import dataclass, field

import torch
from lerobot.configs import NormalizationMode, PreTrainedConfig
from lerobot.optim import AdamWConfig
from lerobot.policies.common.flow_matching import euler_integrate
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import nn


@PreTrainedConfig.register_subclass("picture_probe")
@dataclass
class PictureProbeConfig(PreTrainedConfig):
    chunk_size: int = 20
    gain: float = 40.0
    push_to_hub: bool = False
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: dict.fromkeys(
            ("VISUAL", "STATE", "ACTION"), NormalizationMode.IDENTITY
        )
    )
    observation_delta_indices = reward_delta_indices = None

    @property
    def action_delta_indices(self):
        return list(range(self.chunk_size))

    def get_optimizer_preset(self):
        return AdamWConfig()

    def get_scheduler_preset(self):
        return None

    def validate_features(self):
        pass


class Gain(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))
        self.rtc_processor = None


class PictureProbePolicy(PreTrainedPolicy):
    config_class, name = PictureProbeConfig, "picture_probe"

    def __init__(self, config, **kwargs):
        super().__init__(config)
        self.model = Gain(config.gain)

    def get_optim_params(self):
        return self.parameters()

    def reset(self):
        pass

    def forward(self, batch):
        raise NotImplementedError("it is not trained")

    def select_action(self, batch, **kwargs):
        return self.predict_action_chunk(batch)[:, 0]

    @torch.no_grad()
    def predict_action_chunk(self, batch, noise=None, **kwargs):
        size = self.config.action_feature.shape[0]
        channels = size // len(self.config.image_features)
        seen = [batch[key].mean((2, 3))[:, :channels] for key in self.config.image_features]
        told = torch.cat(seen, 1) * self.model.gain
        told = nn.functional.pad(told, (0, size - told.shape[1]))
        chunk = told[:, None].expand(-1, self.config.chunk_size, -1)
        return euler_integrate(
            lambda x_t, time: (x_t - chunk) / time[:, None, None],
            torch.zeros_like(chunk) if noise is None else noise,
            2,
            rtc_processor=self.model.rtc_processor,
        )
