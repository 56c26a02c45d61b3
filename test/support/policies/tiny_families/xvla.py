"""X-VLA on a small Florence-2, with two cameras."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tiny_families.base import CAMERA, CHUNK, STEPS, WRIST, Tiny, byte_tokenizer

WIDTH = 32


def config(folder: Path) -> dict[str, Any]:
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder / "tokenizer")
    return {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "num_denoising_steps": STEPS,
        "tokenizer_name": str(folder / "tokenizer"),
        "action_mode": "auto",
        "hidden_size": WIDTH,
        "depth": 2,
        "num_heads": 2,
        "num_domains": 3,
        "len_soft_prompts": 4,
        "max_action_dim": 8,
        "max_state_dim": 8,
        "resize_imgs_with_padding": (32, 32),
        "florence_config": {
            "vision_config": {
                "depths": [1, 1],
                "patch_size": [7, 3],
                "patch_stride": [4, 2],
                "patch_padding": [3, 1],
                "patch_prenorm": [False, True],
                "embed_dim": [16, WIDTH],
                "num_heads": [2, 2],
                "num_groups": [2, 2],
                "window_size": 4,
                "projection_dim": WIDTH,
            },
            "text_config": {
                "vocab_size": len(tokenizer),
                "d_model": WIDTH,
                "encoder_layers": 2,
                "decoder_layers": 1,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "encoder_attention_heads": 2,
                "decoder_attention_heads": 2,
            },
        },
    }


def predicted(policy: Any, batch: dict[str, Any], noise: Tensor | None) -> Tensor:
    """Its call takes a noise and ignores it."""
    with patch.object(torch, "randn", lambda *_, **__: noise):
        return policy.predict_action_chunk(batch)


TINY = {
    "xvla": Tiny(
        "xvla",
        config,
        cameras=(CAMERA, WRIST),
        unit=1.0,  # LeRobot does not normalise its actions
        noise_shape=(CHUNK, 8),
        lerobot=predicted,
    )
}
