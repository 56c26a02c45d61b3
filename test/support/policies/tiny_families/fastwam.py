"""FastWAM on a small Wan VAE and UMT5."""

import tempfile
from atexit import register
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor
from transformers import UMT5Config, UMT5EncoderModel

from tiny_families.base import ACTION_DIM, CHUNK, SIZE, STATE_DIM, STEPS, Tiny, byte_tokenizer

LATENTS = 48
"""What LeRobot hard-codes."""
TEXT = 32
EXPERT = {
    "ffn_dim": 32,
    "freq_dim": 16,
    "text_dim": TEXT,
    "num_heads": 2,
    "num_layers": 2,
    "eps": 1e-6,
}


def config(folder: Path) -> dict[str, Any]:
    byte_tokenizer().save_pretrained(folder / "umt5_tokenizer")
    torch.manual_seed(0)
    small = UMT5Config(
        vocab_size=300, d_model=TEXT, d_kv=16, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0
    )
    UMT5EncoderModel(small).save_pretrained(folder / "wan" / "text_encoder")
    return {
        "torch_dtype": "float32",
        "base_model_id": None,
        "tokenizer_model_id": str(folder / "umt5_tokenizer"),
        "text_encoder_model_id": str(folder / "wan"),
        "prompt_template": "{task}",
        "tokenizer_max_len": 32,
        "image_size": SIZE,
        "proprio_dim": STATE_DIM,
        "action_dim": ACTION_DIM,
        "action_horizon": CHUNK,
        "n_action_steps": CHUNK,
        "num_video_frames": 5,
        "action_video_freq_ratio": 1,
        "num_inference_steps": STEPS,
        "video_dit_config": EXPERT
        | {
            "patch_size": [1, 1, 1],
            "in_dim": LATENTS,
            "out_dim": LATENTS,
            "hidden_dim": 32,
            "attn_head_dim": 16,
            "seperated_timestep": True,
            "video_attention_mask_mode": "first_frame_causal",
            "action_dim": ACTION_DIM,
        },
        "action_dit_config": EXPERT
        | {"hidden_dim": 32, "attn_head_dim": 16, "action_dim": ACTION_DIM},
    }


@contextmanager
def small_vae():
    """A hub cache with a small VAE by the name that LeRobot hard-codes."""
    with patch("huggingface_hub.constants.HF_HUB_CACHE", str(hub_cache())):
        yield


@cache
def hub_cache() -> Path:
    folder = tempfile.TemporaryDirectory()
    register(folder.cleanup)
    commit = "0123abcd" * 5
    repository = Path(folder.name) / "models--Wan-AI--Wan2.2-TI2V-5B-Diffusers"
    small_wan_vae().save_pretrained(repository / "snapshots" / commit / "vae")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return Path(folder.name)


def small_wan_vae() -> AutoencoderKLWan:
    torch.manual_seed(0)
    return AutoencoderKLWan(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=LATENTS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * LATENTS,
        latents_std=[1.0] * LATENTS,
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_spatial=16,
    )


def predicted(policy: Any, batch: dict[str, Any], noise: Tensor) -> Tensor:
    """LeRobot takes a seed, and draws the noise of one robot after the other."""
    rows = iter(noise[:, None])
    with patch.object(policy.model, "_make_action_latents", lambda *_: next(rows)):
        return policy.predict_action_chunk(batch)


TINY = {
    "fastwam": Tiny(
        "fastwam",
        config,
        loaded=small_vae,
        dtypes=("float32",),  # it autocasts its time embedding back on CUDA only
        largest_batch=1,
        lerobot=predicted,
    )
}
