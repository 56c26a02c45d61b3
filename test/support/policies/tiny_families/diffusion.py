"""The diffusion policy, with two observation steps."""

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from tiny_families.base import ACTION_DIM, CHUNK, STEPS, Tiny

HORIZON = 16


def config(scheduler: str, _folder: Path) -> dict[str, Any]:
    return {
        "n_obs_steps": 2,
        "horizon": HORIZON,
        "n_action_steps": CHUNK,
        "down_dims": (16, 32),
        "diffusion_step_embed_dim": 16,
        "spatial_softmax_num_keypoints": 4,
        "pretrained_backbone_weights": None,
        "num_inference_steps": STEPS,
        "noise_scheduler_type": scheduler,
    }


def drawn(policy: Any, batch: dict[str, Any], _noise: Tensor | None) -> Tensor:
    """LeRobot draws the noise of DDPM's steps from the global generator, after the first."""
    return policy.predict_action_chunk(batch)


def tiny(scheduler: str, **changes: Any) -> Tiny:
    return Tiny(
        "diffusion",
        partial(config, scheduler),
        reads_text=False,
        unit=4.0,
        noise_shape=(HORIZON, ACTION_DIM),
        first=1,  # of two observation steps the second is now
        **changes,
    )


TINY = {
    "diffusion": tiny("DDIM"),
    "ddpm": tiny("DDPM", lerobot=drawn, seeded=True, sums=False),
}
