"""EO-1 on a small Qwen2.5-VL."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from tiny_families.base import CHUNK, STEPS, Tiny, byte_tokenizer

PIXELS = 28 * 28
"""Of one image token."""
CHAT = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n{% endfor %}"
)


def config(folder: Path) -> dict[str, Any]:
    return {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "num_denoise_steps": STEPS,
        "vlm_base": str(save_qwen(folder / "qwen")),
        "image_min_pixels": PIXELS,
        "image_max_pixels": 4 * PIXELS,
        "max_action_dim": 8,
        "max_state_dim": 8,
    }


def save_qwen(
    folder: Path, text: Mapping[str, Any] | None = None, vision: Mapping[str, Any] | None = None
) -> Path:
    """A folder with a small Qwen2.5-VL and its processor. text, vision: of its configuration."""
    tokenizer = byte_tokenizer(
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
    )
    image, video, start, end = tokenizer.convert_tokens_to_ids(
        ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    )
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT,
    ).save_pretrained(folder)
    config = Qwen2_5_VLConfig(
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
            **(vision or {}),
        },
        text_config={
            "vocab_size": len(tokenizer) + 16,  # the special tokens of EO-1 are added
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            "max_position_embeddings": 512,
            **(text or {}),
        },
    )
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    return folder


def predicted(policy: Any, batch: dict[str, Any], noise: Tensor | None) -> Tensor:
    """Its call takes no noise."""
    with patch.object(policy.model, "sample_noise", lambda *_: noise):
        return policy.predict_action_chunk(batch)


TINY = {"eo1": Tiny("eo1", config, noise_shape=(CHUNK, 8), lerobot=predicted)}
