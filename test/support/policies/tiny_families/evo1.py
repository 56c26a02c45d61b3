"""EVO1 on a small InternVL."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import InternVLConfig, InternVLModel

from tiny_families.base import ACTION_DIM, CHUNK, STEPS, Tiny, byte_tokenizer

PADDED = 8
IMAGE = 28


def config(folder: Path) -> dict[str, Any]:
    return {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "num_inference_timesteps": STEPS,
        "vlm_model_name": str(save_internvl(folder / "internvl")),
        "vlm_num_layers": 2,
        "vlm_dtype": "float32",
        "use_flash_attn": False,
        "image_resolution": (IMAGE, IMAGE),
        "max_views": 2,  # of which one is absent
        "max_action_dim": PADDED,
        "max_state_dim": PADDED,
        "embed_dim": 32,
        "hidden_dim": 32,
        "state_hidden_dim": 32,
        "num_heads": 2,
        "num_layers": 2,
    }


def save_internvl(folder: Path) -> Path:
    """A folder with a small InternVL and its tokenizer. EVO1 loads its weights before its own."""
    tokenizer = byte_tokenizer(start="<img>", end="</img>", context="<IMG_CONTEXT>")
    small = InternVLConfig(
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=1,
        downsample_ratio=0.5,
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": (IMAGE, IMAGE),
            "patch_size": (14, 14),
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,  # of which EVO1 takes two
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
    )
    InternVLModel(small).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def predicted(policy: Any, batch: dict[str, Any], noise: Tensor) -> Tensor:
    """LeRobot draws it by itself: uniform in 0..1, flat and with its padding."""
    drawn = torch.zeros(len(noise), CHUNK, PADDED)
    drawn[..., :ACTION_DIM] = (noise + 1) / 2
    with patch.object(torch, "rand", lambda *_, **__: drawn.flatten(1)):
        return policy.predict_action_chunk(batch)


TINY = {"evo1": Tiny("evo1", config, unit=4.0, uniform=True, lerobot=predicted)}
