"""pi0, pi05, smolvla, flow_mlp: what integrates with LeRobot's `euler_integrate`."""

from collections.abc import Sequence
from typing import Any

import torch
from lerobot.policies.common.vla_utils import resize_with_pad, resize_with_pad_torch
from torch import Tensor

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.families.guidance import Committed, Steps
from kairos_ros.engine.policies.sampler import FamilyCode, Resize, row_generators, row_noise


class EulerSampler:
    """The tap and the guidance are LeRobot's own hook for real-time chunking,
    `model.rtc_processor`."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        config = policy.config
        self._policy = policy
        self._steps = Steps()
        policy.model.rtc_processor = self._steps
        self.chunk_size = config.chunk_size
        self.action_dim = config.action_feature.shape[0]
        # VLAs denoise padded actions; the padding is cut off below.
        self._noise_shape = (self.chunk_size, getattr(config, "max_action_dim", self.action_dim))

    def sample(
        self, batch: dict[str, Any], seeds: Sequence[int], committed: Committed | None = None
    ) -> tuple[Tensor, Tensor]:
        device = next(self._policy.parameters()).device
        noise = row_noise(row_generators(seeds), self._noise_shape, device)
        self._steps.begin(committed)
        chunk = self._policy.predict_action_chunk(batch, noise=noise)
        steps = self._steps.take()
        if not steps:
            raise PolicyError("it reports no step to model.rtc_processor.track (docs/engine.md)")
        if committed is not None and not self._steps.asked:
            raise PolicyError("it does not call model.rtc_processor.denoise_step (docs/rtc.md)")
        velocities = torch.stack(steps)
        return chunk, velocities[..., : self.action_dim] * (-1.0 / len(velocities))


def own_resize(config: Any) -> Resize:
    """By the function that the policy uses itself."""
    if config.type == "smolvla":
        width, height = config.resize_imgs_with_padding
        return lambda picture: resize_with_pad(picture, height, width, pad_value=0)
    height, width = config.image_resolution
    return lambda picture: resize_with_pad_torch(
        picture.permute(0, 2, 3, 1), height, width
    ).permute(0, 3, 1, 2)


def step(policy: Any) -> tuple[Any, str]:
    model = policy.model
    return model, "denoise_step" if hasattr(model, "denoise_step") else "forward"


CODE = FamilyCode(EulerSampler, resize=own_resize, step=step)
