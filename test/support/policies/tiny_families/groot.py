"""GR00T N1.7 on a small Qwen3-VL, of which only the configuration and the processor are saved."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lerobot.policies.groot.groot_n1_7 import GR00TN17, GR00TN17Config
from torch import Tensor
from transformers import Qwen2VLImageProcessor, Qwen3VLConfig, Qwen3VLVideoProcessor

from tiny_families.base import ACTION_DIM, CHUNK, STEPS, Tiny, byte_tokenizer

WIDTH, HORIZON, PADDED = 32, 16, 8
CHAT = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n{% endfor %}"
)


def config(folder: Path) -> dict[str, Any]:
    return {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "num_inference_timesteps": STEPS,
        "base_model_path": str(save_groot(folder / "base", save_qwen(folder / "tokenizer"))),
        "max_action_dim": PADDED,
        "max_state_dim": PADDED,
        "use_bf16": False,
    }


def save_qwen(folder: Path) -> Path:
    """A folder with a small Qwen3-VL's configuration and processor."""
    tokenizer = byte_tokenizer(
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessor(patch_size=16).save_pretrained(folder)
    Qwen3VLVideoProcessor().save_pretrained(folder)
    image, video, start, end = tokenizer.convert_tokens_to_ids(
        ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    )
    Qwen3VLConfig(
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        vision_config={
            "depth": 2,
            "hidden_size": WIDTH,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0],
        },
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": WIDTH,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_scaling": {
                "rope_type": "default",
                "mrope_interleaved": True,
                "mrope_section": [4, 2, 2],
            },
            "tie_word_embeddings": True,
        },
    ).save_pretrained(folder)
    return folder


def save_groot(folder: Path, qwen: Path) -> Path:
    """A folder with a small GR00T as NVIDIA publishes them, to be trained further."""
    attention = {"num_attention_heads": 2, "attention_head_dim": 16, "positional_embeddings": None}
    config = GR00TN17Config(
        model_name=str(qwen),
        dtype="float32",
        model_dtype="float32",
        select_layer=2,
        backbone_embedding_dim=WIDTH,
        hidden_size=WIDTH,
        input_embedding_dim=WIDTH,
        action_horizon=HORIZON,
        max_action_dim=PADDED,
        max_state_dim=PADDED,
        diffusion_model_cfg=attention
        | {
            "num_layers": 2,
            "norm_type": "ada_norm",
            "output_dim": WIDTH,
            "interleave_self_attention": True,
        },
        vl_self_attention_cfg=attention | {"num_layers": 1},
    )
    model = GR00TN17(config, load_backbone_weights=False)
    for weight in model.action_head.parameters():
        if weight.ndim == 3:  # of one layer per embodiment: as they are, they say next to nothing
            weight.data *= 10
    model.save_pretrained(folder)
    return folder


def predicted(policy: Any, batch: dict[str, Any], noise: Tensor | None) -> Tensor:
    """Its call takes no noise. It attends to padding, so what counts is what it computes for robots
    whose instructions are equally long."""
    chunks = torch.empty(len(noise), CHUNK, ACTION_DIM)
    lengths = batch["attention_mask"].sum(dim=1)
    for length in lengths.unique():
        mine = lengths == length
        patches = mine.repeat_interleave(len(batch["pixel_values"]) // len(mine))
        given = {key: batch[key][mine] for key in ("state", "embodiment_id", "image_grid_thw")}
        for key in ("input_ids", "attention_mask"):
            given[key] = batch[key][mine][:, -length:]
        with patch.object(torch, "randn", lambda *_, mine=mine, **__: noise[mine]):
            chunks[mine] = policy.predict_action_chunk(
                given | {"pixel_values": batch["pixel_values"][patches]}
            )
    return chunks


TINY = {"groot": Tiny("groot", config, unit=4.0, noise_shape=(HORIZON, PADDED), lerobot=predicted)}
