"""pi0 and pi05 with a small PaliGemma."""

from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lerobot.policies.pi0 import modeling_pi0
from lerobot.policies.pi05 import modeling_pi05

from tiny_families.base import CHUNK, STEPS, Tiny, byte_tokenizer

MODELING = {"pi0": modeling_pi0, "pi05": modeling_pi05}
TINY_GEMMA = {
    "width": 32,
    "depth": 2,
    "mlp_dim": 64,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 16,
}
"""Sizes of the language model and of the action expert."""
TINY_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 14,
}
VOCABULARY = 300


def config(folder: Path) -> dict[str, Any]:
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    return {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "num_inference_steps": STEPS,
        "image_resolution": (28, 28),
        "tokenizer_max_length": 64,
        "max_action_dim": 8,
        "max_state_dim": 8,
    }


@contextmanager
def small_pi(gemma=TINY_GEMMA, vision=TINY_VISION, vocabulary=VOCABULARY, expert=None):
    """pi0 and pi05 with the backbone's sizes cut down (LeRobot accepts two hard-coded sizes).
    `expert`: what is different in the action expert."""

    def size(variant):
        own = (expert or {}) if variant == "gemma_300m" else {}
        return modeling_pi05.GemmaConfig(**gemma | own)

    def small_vlm(module):
        build = module.PaliGemmaForConditionalGenerationWithPiGemma

        def built(config):
            config.text_config.vocab_size = config._vocab_size = vocabulary
            config.image_token_index = vocabulary - 1
            for name, value in vision.items():
                setattr(config.vision_config, name, value)
            config.vision_config.projection_dim = config.projection_dim = gemma["width"]
            return build(config=config)

        return built

    def small_expert(module):
        build = module.PiGemmaForCausalLM

        def built(config):
            config.vocab_size = vocabulary
            return build(config=config)

        return built

    patches = [
        patch.object(module, name, make(module))
        for module in MODELING.values()
        for name, make in (
            ("get_gemma_config", lambda _: size),
            ("PaliGemmaForConditionalGenerationWithPiGemma", small_vlm),
            ("PiGemmaForCausalLM", small_expert),
        )
    ]
    for change in patches:
        change.start()
    try:
        yield
    finally:
        for change in patches:
            change.stop()


@contextmanager
def own_tokenizer(folder: Path):
    """Processors of a new pi policy name a tokenizer on the hub: read this folder instead."""
    from lerobot.processor import tokenizer_processor

    folder = folder / "tokenizer"
    original = tokenizer_processor.AutoTokenizer

    class Local:
        @staticmethod
        def from_pretrained(name, **options):
            return original.from_pretrained(folder if folder.is_dir() else name, **options)

    with patch.object(tokenizer_processor, "AutoTokenizer", Local):
        yield


TINY = {
    "pi0": Tiny("pi0", config, own_tokenizer, small_pi, noise_shape=(CHUNK, 8)),
    "pi05": Tiny("pi05", config, own_tokenizer, small_pi, unit=4.0, noise_shape=(CHUNK, 8)),
}
