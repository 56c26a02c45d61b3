"""The multi-task diffusion transformer on a small CLIP, with two cameras and two observations."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from transformers import CLIPConfig, CLIPModel

from tiny_families.base import (
    ACTION_DIM,
    CAMERA,
    CHUNK,
    SIZE,
    STEPS,
    WRIST,
    Tiny,
    byte_tokenizer,
    from_queues,
)

HORIZON = 16


def config(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    clip = str(save_clip(folder / "clip"))
    return {
        "n_obs_steps": 2,
        "horizon": HORIZON,
        "n_action_steps": CHUNK,
        "hidden_dim": 32,
        "num_layers": 2,
        "num_heads": 2,
        "timestep_embed_dim": 16,
        "vision_encoder_name": clip,
        "text_encoder_name": clip,
        "image_crop_shape": (SIZE[0], SIZE[0]),
        **fields,
    }


def save_clip(folder: Path) -> Path:
    """A folder with a small CLIP: configuration, random weights and tokenizer."""
    tokenizer = byte_tokenizer()
    begin, end = (tokenizer.convert_tokens_to_ids(token) for token in ("<bos>", "<eos>"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", begin), ("<eos>", end)]
    )
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    torch.manual_seed(0)
    clip = CLIPModel(
        CLIPConfig(
            text_config=sizes
            | {"vocab_size": len(tokenizer), "bos_token_id": begin, "eos_token_id": end},
            vision_config=sizes | {"image_size": SIZE[0], "patch_size": 8},
            projection_dim=32,
        )
    )
    tokenizer.save_pretrained(folder)
    clip.save_pretrained(folder)
    return folder


def tiny(fields: dict[str, Any], **changes: Any) -> Tiny:
    return Tiny(
        "multi_task_dit",
        partial(config, fields),
        cameras=(CAMERA, WRIST),
        unit=4.0,
        noise_shape=(HORIZON, ACTION_DIM),
        first=1,  # of two observation steps the second is now
        lerobot=from_queues,
        seeded=True,
        **changes,
    )


def modest(policy: Any) -> None:
    """A network that predicts the actions themselves has learnt to stay between -1 and 1. With
    random weights it says up to 17, and the chunk moves by a hundred times what a step was rounded
    by.
    """
    policy.noise_predictor.output_proj.weight.data /= 16


def diffusion(scheduler: str, predicts: str) -> dict[str, Any]:
    return {
        "noise_scheduler_type": scheduler,
        "prediction_type": predicts,
        "num_inference_steps": STEPS,
    }


def flow(method: str) -> dict[str, Any]:
    return {
        "objective": "flow_matching",
        "integration_method": method,
        "num_integration_steps": STEPS,
    }


TINY = {
    "dit_ddim": tiny(diffusion("DDIM", "sample"), trained=modest),
    "dit_ddpm": tiny(diffusion("DDPM", "epsilon"), sums=False),
    "dit_euler": tiny(flow("euler")),
    "dit_rk4": tiny(flow("rk4")),
}
