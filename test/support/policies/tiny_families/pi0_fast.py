"""pi0-FAST with a small PaliGemma, and a small tokenizer for actions."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lerobot.policies.pi0_fast import modeling_pi0_fast
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from kairos_ros.engine.policies.families.pi0_fast import configure
from tiny_families.base import ACTION_DIM, CHUNK, Tiny, byte_tokenizer
from tiny_families.pi import TINY_GEMMA, TINY_VISION

LEAST, TOKENS = -130, 260
"""Coefficients of the cosine transform go from LEAST on, one token each."""
VOCABULARY = 260
"""Of the byte tokenizer."""


def config(folder: Path) -> dict[str, Any]:
    configure(None)
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    return {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "image_resolution": (28, 28),
        "tokenizer_max_length": 96,
        "max_decoding_steps": CHUNK * ACTION_DIM,
        "max_action_dim": 8,
        "max_state_dim": 8,
        "fast_skip_tokens": 0,
        "temperature": 0.2,
        "validate_action_token_prefix": False,
        "text_tokenizer_name": str(folder / "tokenizer"),
        "action_tokenizer_name": str(save_fast(folder / "fast")),
    }


def save_fast(folder: Path) -> Path:
    """A folder with a tokenizer for actions that has no code of its own."""
    letters = Tokenizer(models.BPE(vocab={chr(n): n for n in range(TOKENS)}, merges=[]))
    letters.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=letters, clean_up_tokenization_spaces=False
    ).save_pretrained(folder)
    processor = {"processor_class": "UniversalActionProcessor", "scale": 10, "min_token": LEAST}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


@contextmanager
def small():
    """LeRobot accepts two hard-coded sizes."""
    build = modeling_pi0_fast.PaliGemmaForConditionalGenerationWithPiGemma

    def built(config):
        config.text_config.vocab_size = config._vocab_size = VOCABULARY
        config.image_token_index = VOCABULARY - 1
        for name, value in {**TINY_VISION, "image_size": 28}.items():
            setattr(config.vision_config, name, value)
        config.vision_config.projection_dim = config.projection_dim = TINY_GEMMA["width"]
        return build(config=config)

    gemma = modeling_pi0_fast.GemmaConfig(**TINY_GEMMA)
    with (
        patch.object(modeling_pi0_fast, "get_gemma_config", lambda _: gemma),
        patch.object(modeling_pi0_fast, "PaliGemmaForConditionalGenerationWithPiGemma", built),
    ):
        yield


def predicted(policy: Any, batch: dict[str, Any], _noise: None) -> Any:
    return policy.predict_action_chunk(batch)


TINY = {
    "pi0_fast": Tiny(
        "pi0_fast",
        config,
        loaded=small,
        steps=0,
        noise_shape=None,
        lerobot=predicted,
        seeded=True,
        sums=False,
        writes=True,
    )
}
