"""Small real LeRobot policies, made from their own configuration classes and saved as folders.

Nothing of a policy is replaced; only widths, depths and vocabularies are small. Weights are
random, drawn so that the output depends on every input.
"""

from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
from lerobot.policies.factory import (
    get_policy_class,
    make_policy_config,
    make_pre_post_processors,
)
from lerobot.policies.pi0 import modeling_pi0
from lerobot.policies.pi05 import modeling_pi05
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

import kairos_ros.engine.flow_mlp.configuration_flow_mlp  # noqa: F401  registers its type

STATE_DIM = 5
ACTION_DIM = 3
CAMERA = "observation.images.top"
SIZE = (32, 48)
INSTRUCTIONS = ["open the drawer", "close the drawer"]
MODELING = {"pi0": modeling_pi0, "pi05": modeling_pi05}


def save_policy(kind: str, folder: Path, **changes) -> Path:
    """A policy folder as LeRobot's own training writes it. `kind` may be "ddpm" for diffusion."""
    tokenizer = folder / "tokenizer"
    if kind in MODELING:
        byte_tokenizer().save_pretrained(tokenizer)
    config = tiny_config(kind, folder, **changes)
    torch.manual_seed(0)  # the same weights in every run: some draws hardly see their images
    with small_pi(), tokenizer_from(tokenizer):
        policy = get_policy_class(config.type)(config)
        randomise(policy)
        pre, post = make_pre_post_processors(config, dataset_stats=statistics())
    target = folder / "policy"
    for part in (policy, pre, post):
        part.save_pretrained(target)
    return target


def tiny_config(kind: str, folder: Path, **changes) -> PreTrainedConfig:
    options = {
        "device": "cpu",
        "input_features": {
            "observation.state": PolicyFeature(FeatureType.STATE, (STATE_DIM,)),
            CAMERA: PolicyFeature(FeatureType.VISUAL, (3, *SIZE)),
        },
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
    }
    match kind:
        case "flow_mlp":
            del options["input_features"][CAMERA]
            options |= {"instructions": INSTRUCTIONS, "chunk_size": 12, "num_steps": 6, "width": 32}
        case "diffusion" | "ddpm":
            options |= {
                "n_obs_steps": 2,
                "horizon": 16,
                "n_action_steps": 12,
                "down_dims": (16, 32),
                "diffusion_step_embed_dim": 16,
                "spatial_softmax_num_keypoints": 4,
                "pretrained_backbone_weights": None,
                "num_inference_steps": 6,
                "noise_scheduler_type": "DDPM" if kind == "ddpm" else "DDIM",
            }
        case "act":
            options |= {
                "chunk_size": 12,
                "n_action_steps": 12,
                "dim_model": 32,
                "dim_feedforward": 32,
                "n_encoder_layers": 1,
                "n_vae_encoder_layers": 1,
                "pretrained_backbone_weights": None,
            }
        case "pi0" | "pi05":
            options |= {
                "chunk_size": 12,
                "n_action_steps": 12,
                "num_inference_steps": 6,
                "image_resolution": (28, 28),
                "tokenizer_max_length": 64,
                "max_action_dim": 8,
                "max_state_dim": 8,
            }
        case "smolvla":
            options |= {
                "chunk_size": 12,
                "n_action_steps": 12,
                "num_steps": 6,
                "vlm_model_name": str(save_smolvlm(folder / "smolvlm")),
                "num_vlm_layers": 2,
                "resize_imgs_with_padding": (32, 32),
                "max_action_dim": 8,
                "max_state_dim": 8,
            }
    return make_policy_config("diffusion" if kind == "ddpm" else kind, **options | changes)


@contextmanager
def small_pi():
    """pi0 and pi05 with the backbone's sizes cut down (LeRobot accepts two hard-coded sizes)."""

    def size(_variant):
        return modeling_pi05.GemmaConfig(
            width=32, depth=2, mlp_dim=64, num_heads=2, num_kv_heads=1, head_dim=16
        )

    def small_vlm(module):
        build = module.PaliGemmaForConditionalGenerationWithPiGemma

        def built(config):
            config.text_config.vocab_size = config._vocab_size = 300
            config.image_token_index = 299
            vision = config.vision_config
            vision.hidden_size, vision.intermediate_size = 32, 64
            vision.num_hidden_layers, vision.num_attention_heads = 2, 2
            vision.patch_size, vision.projection_dim = 14, 32
            config.projection_dim = 32
            return build(config=config)

        return built

    def small_expert(module):
        build = module.PiGemmaForCausalLM

        def built(config):
            config.vocab_size = 300
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
def tokenizer_from(folder: Path):
    """Processors of a new pi policy name a tokenizer on the hub: read this folder instead."""
    from lerobot.processor import tokenizer_processor

    original = tokenizer_processor.AutoTokenizer

    class Local:
        @staticmethod
        def from_pretrained(name, **options):
            return original.from_pretrained(folder if folder.is_dir() else name, **options)

    with patch.object(tokenizer_processor, "AutoTokenizer", Local):
        yield


def byte_tokenizer(**extra: str) -> PreTrainedTokenizerFast:
    """A lossless tokenizer: one token per byte. `extra`: further special tokens by name."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<pad>", "<bos>", "<eos>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate(specials + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens=extra,
    )


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


def statistics() -> dict[str, dict[str, torch.Tensor]]:
    """Data set statistics that every normalisation mode finds its numbers in."""
    dims = {"observation.state": (STATE_DIM,), "action": (ACTION_DIM,), CAMERA: (3, 1, 1)}
    return {
        key: {
            "mean": torch.full(shape, 0.1),
            "std": torch.full(shape, 2.0),
            **dict.fromkeys(("min", "q01"), torch.full(shape, -3.0)),
            **dict.fromkeys(("max", "q99"), torch.full(shape, 5.0)),
        }
        for key, shape in dims.items()
    }


def randomise(policy: torch.nn.Module, seed: int = 0) -> None:
    """Fresh policies start with zeroed gates and near-zero heads; give them something to say."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters():
        inputs = parameter[0].numel() if parameter.ndim > 1 else 25
        scale = inputs**-0.5
        noise = torch.randn(parameter.shape, generator=generator) * scale
        parameter.data += noise.to(parameter.dtype)
