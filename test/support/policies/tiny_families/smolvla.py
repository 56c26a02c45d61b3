"""SmolVLA on a small SmolVLM."""

from pathlib import Path
from typing import Any

from transformers import (
    SmolVLMConfig,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from tiny_families.base import CHUNK, STEPS, Tiny, byte_tokenizer


def config(folder: Path) -> dict[str, Any]:
    return {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "num_steps": STEPS,
        "vlm_model_name": str(save_smolvlm(folder / "smolvlm")),
        "num_vlm_layers": 2,
        "resize_imgs_with_padding": (32, 32),
        "max_action_dim": 8,
        "max_state_dim": 8,
    }


def save_smolvlm(folder: Path) -> Path:
    """A folder with a small SmolVLM's configuration and processor."""
    tokenizer = byte_tokenizer(
        fake_image_token="<fake_token_around_image>",
        image_token="<image>",
        global_image_token="<global-img>",
        end_of_utterance_token="<end_of_utterance>",
    )
    image = tokenizer.convert_tokens_to_ids("<image>")
    size = {"longest_edge": 32}
    processor = SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(size=size, max_image_size=size),
        tokenizer=tokenizer,
        video_processor=SmolVLMVideoProcessor(),
        image_seq_len=4,
    )
    config = SmolVLMConfig(
        image_token_id=image,
        scale_factor=2,
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
        },
    )
    config.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


TINY = {"smolvla": Tiny("smolvla", config, noise_shape=(CHUNK, 8))}
