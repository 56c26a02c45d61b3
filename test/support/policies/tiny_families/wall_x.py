"""Wall-X on a small Qwen2.5-VL. It needs packages that nothing else here does."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

from kairos_ros.engine.policies.served import FAMILIES
from tiny_families.base import CHUNK, Tiny, byte_tokenizer

PADDED = 8
WIDTH = 32


def config(folder: Path) -> dict[str, Any]:
    return {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "pretrained_name_or_path": str(save_qwen(folder / "wall_oss")),
        "max_action_dim": PADDED,
        "max_state_dim": PADDED,
    }


def save_qwen(folder: Path) -> Path:
    """A folder with a small Qwen2.5-VL as Wall-X changes it, without weights of its own."""
    from lerobot.policies.wall_x.qwen_model import Qwen2_5_VLConfig

    names = ("im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad")
    names += ("propri", "action", "action_fast")
    tokenizer = byte_tokenizer(**{name: f"<|{name}|>" for name in names})
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in names}
    expert = {"hidden_size": WIDTH, "intermediate_size": 64, "hidden_act": "silu"}
    Qwen2_5_VLConfig(
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
            "fullatt_block_indexes": [1],
        },
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            "num_experts": 2,
            "experts": [expert, expert],
            "dim_inputs": (WIDTH, WIDTH),
            "mlp_moe": True,
            "dof_config": {"arm": PADDED},
        },
        agent_pos_config={"arm": PADDED},
    ).save_pretrained(folder)
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
    ).save_pretrained(folder)
    save_file({"unused": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def predicted(policy: Any, batch: dict[str, Any], noise: Tensor) -> Tensor:
    """LeRobot draws it by itself."""
    with patch.object(torch, "randn", lambda *_, **__: noise.clone()):
        return policy.predict_action_chunk(batch)


TINY = {}
if all(find_spec(package) for package in FAMILIES["wall_x"].packages):
    TINY["wall_x"] = Tiny(
        "wall_x",
        config,
        steps=10,
        dtypes=("bfloat16",),
        noise_shape=(CHUNK, PADDED),
        lerobot=predicted,
    )
