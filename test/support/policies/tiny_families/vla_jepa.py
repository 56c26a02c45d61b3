"""VLA-JEPA on a small Qwen3-VL, with the world model that it was trained with."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lerobot.policies.vla_jepa import modeling_vla_jepa
from torch import Tensor
from transformers import (
    AutoTokenizer,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    VJEPA2Config,
    VJEPA2Model,
    VJEPA2VideoProcessor,
)

from tiny_families import groot
from tiny_families.base import CAMERA, CHUNK, STEPS, WRIST, Tiny


def config(folder: Path) -> dict[str, Any]:
    return {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "num_inference_timesteps": STEPS,
        "qwen_model_name": str(save_qwen(folder / "qwen")),
        "jepa_encoder_name": str(save_jepa(folder / "jepa")),
        "jepa_tubelet_size": 2,
        "num_embodied_action_tokens_per_instruction": 4,
        "num_action_tokens_per_timestep": 2,
        "action_model_type": "DiT-test",
        "action_hidden_size": 32,
        "action_num_layers": 2,
        "predictor_depth": 1,
        "predictor_num_heads": 2,
        "clip_normalized_actions": False,
        "torch_dtype": "float32",
    }


def save_qwen(folder: Path) -> Path:
    """A folder with a small Qwen3-VL and its processor."""
    small = Qwen3VLConfig.from_pretrained(groot.save_qwen(folder))
    small.text_config.vocab_size += 64  # for the tokens of actions, as in the real one
    Qwen3VLForConditionalGeneration(small).save_pretrained(folder)
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=16),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        video_processor=Qwen3VLVideoProcessor(),
        chat_template=groot.CHAT,
    ).save_pretrained(folder)
    return folder


def save_jepa(folder: Path) -> Path:
    """A folder with a small V-JEPA 2. It makes one position of four frames, where the configuration
    of the policy says two."""
    small = VJEPA2Config(
        crop_size=32,
        frames_per_clip=8,
        tubelet_size=4,
        hidden_size=48,
        num_attention_heads=2,
        num_hidden_layers=1,
        pred_hidden_size=48,
        pred_num_attention_heads=2,
        pred_num_hidden_layers=1,
        pred_num_mask_tokens=1,
    )
    VJEPA2Model(small).save_pretrained(folder)
    VJEPA2VideoProcessor(size={"shortest_edge": 32}, crop_size=32).save_pretrained(folder)
    return folder


def predicted(policy: Any, batch: dict[str, Any], noise: Tensor | None) -> Tensor:
    """In float32, where LeRobot autocasts to bfloat16."""
    with patch.object(modeling_vla_jepa, "_get_autocast_context", lambda *_: nullcontext()):
        return policy.predict_action_chunk(batch)


TINY = {
    "vla_jepa": Tiny(
        "vla_jepa",
        config,
        cameras=(CAMERA, WRIST),
        unit=4.0,
        lerobot=predicted,
        seeded=True,
    )
}
