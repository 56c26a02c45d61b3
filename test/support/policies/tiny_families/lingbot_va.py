"""LingBot-VA on a small Wan VAE and UMT5."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import T5TokenizerFast, UMT5Config, UMT5EncoderModel

from tiny_families.base import ACTION_DIM, CAMERA, SIZE, Tiny
from tiny_families.fastwam import LATENTS, TEXT, small_wan_vae

FRAMES, PER_FRAME = 4, 4
"""The first chunk has three frames of actions: CHUNK."""
STEPS = 6


def config(folder: Path) -> dict[str, Any]:
    wan = folder / "wan"
    letters = [(letter, -1.0) for letter in "▁abcdefghijklmnopqrstuvwxyz"]
    specials = [(token, 0.0) for token in ("<pad>", "</s>", "<unk>")]
    T5TokenizerFast(vocab=[*specials, *letters], extra_ids=0).save_pretrained(wan / "tokenizer")
    small_wan_vae().save_pretrained(wan / "vae")
    torch.manual_seed(0)
    text = UMT5Config(
        vocab_size=300, d_model=TEXT, d_kv=16, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0
    )
    UMT5EncoderModel(text).save_pretrained(wan / "text_encoder")
    return {
        "wan_pretrained_path": str(wan),
        "dtype": "float32",
        "patch_size": (1, 1, 1),
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "in_channels": LATENTS,
        "out_channels": LATENTS,
        "action_dim": 6,
        "text_dim": TEXT,
        "freq_dim": 16,
        "ffn_dim": 32,
        "num_layers": 2,
        "obs_cam_keys": [CAMERA],
        "height": SIZE[0],
        "width": SIZE[1],
        "action_per_frame": PER_FRAME,
        "frame_chunk_size": FRAMES,
        "attn_window": 8,
        "num_inference_steps": 3,
        "action_num_inference_steps": STEPS,
        "max_sequence_length": 32,
        "used_action_channel_ids": [0, 2, 5][:ACTION_DIM],
    }


def predicted(policy: Any, batch: dict[str, Any], _noise: Tensor | None) -> Tensor:
    """LeRobot's first chunk of an episode; it reads the newest observation."""
    policy.reset()
    return policy.predict_action_chunk(batch | {CAMERA: batch[CAMERA][:, -1]})


TINY = {
    "lingbot_va": Tiny(
        "lingbot_va",
        config,
        dtypes=("float32", "bfloat16"),
        steps=STEPS,
        chunk=FRAMES * PER_FRAME,
        largest_batch=1,
        reads_state=False,
        unit=4.0,
        noise_shape=None,
        lerobot=predicted,
        seeded=True,
        sums=False,
    )
}
