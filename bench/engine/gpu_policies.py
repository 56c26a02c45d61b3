"""Policies of LeRobot at their real size with random weights, made without the hub.

A configuration is LeRobot's default, with the cameras and dimensions of one arm. What LeRobot reads
from the hub besides it is made here: the configurations of SmolVLM2-500M and of Florence-2-large,
and a tokenizer with a token per byte (a prompt is longer than with the real one, where it is not
padded to a fixed length). Random values are cheap ones: see `fill`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
from lerobot.policies.factory import (
    get_policy_class,
    make_policy_config,
    make_pre_post_processors,
)
from lerobot.processor import tokenizer_processor
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from kairos_ros.engine.policies.unfilled import Unfilled

STATE_DIM = ACTION_DIM = 7
LARGE = 1 << 16
"""Values of a matrix from which on it is filled cheaply, and not by LeRobot."""
BLOCK = 1_048_583
"""Random values that are repeated; a prime, so that rows of a matrix differ."""
CAMERAS = ("front", "left", "wrist")


@dataclass(frozen=True, slots=True)
class Real:
    """A family at its real size."""

    config: Callable[[Path], dict[str, Any]]
    """What its configuration says besides LeRobot's defaults. Parts are saved into the folder."""
    pictures: tuple[int, int]
    """Height and width in pixels of what each camera gives."""
    cameras: tuple[str, ...]
    file_b: int
    """Bytes of its weights on disk."""
    float32_b: int
    """Bytes of its weights in memory as float32."""


def pi(folder: Path) -> dict[str, Any]:
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    return {"dtype": "bfloat16"}


def smolvla(folder: Path) -> dict[str, Any]:
    return {"vlm_model_name": str(save_smolvlm(folder / "smolvlm"))}


def save_smolvlm(folder: Path) -> Path:
    """A folder with the configuration of SmolVLM2-500M-Video-Instruct, and a processor."""
    tokenizer = byte_tokenizer(
        fake_image_token="<fake_token_around_image>",
        image_token="<image>",
        global_image_token="<global-img>",
        end_of_utterance_token="<end_of_utterance>",
    )
    SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(),
        tokenizer=tokenizer,
        video_processor=SmolVLMVideoProcessor(),
        image_seq_len=64,
    ).save_pretrained(folder)
    SmolVLMConfig(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=4,
        vision_config={
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 512,
            "patch_size": 16,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": 49_280,
            "hidden_size": 960,
            "intermediate_size": 2560,
            "num_hidden_layers": 32,  # of which LeRobot takes 16
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "head_dim": 64,
            "pad_token_id": tokenizer.pad_token_id,
        },
    ).save_pretrained(folder)
    return folder


def resnet(_folder: Path) -> dict[str, Any]:
    """Of act and diffusion: without what LeRobot fetches to begin training with."""
    return {"pretrained_backbone_weights": None}


def xvla(folder: Path) -> dict[str, Any]:
    """With Florence-2-large, on which the published X-VLA is built."""
    byte_tokenizer().save_pretrained(folder / "tokenizer")
    heads = [8, 16, 32, 64]
    return {
        "dtype": "bfloat16",
        "tokenizer_name": str(folder / "tokenizer"),
        "action_mode": "auto",
        "resize_imgs_with_padding": (224, 224),
        "florence_config": {
            "vision_config": {
                "depths": [1, 1, 9, 1],
                "embed_dim": [256, 512, 1024, 2048],
                "num_heads": heads,
                "num_groups": heads,
                "projection_dim": 1024,
            },
            "text_config": {
                "vocab_size": 51_289,
                "d_model": 1024,
                "encoder_layers": 12,
                "decoder_layers": 12,
                "encoder_ffn_dim": 4096,
                "decoder_ffn_dim": 4096,
                "encoder_attention_heads": 16,
                "decoder_attention_heads": 16,
            },
        },
    }


REAL: dict[str, Real] = {
    "pi05": Real(pi, (224, 224), CAMERAS, 9_360_000_000, 16_580_000_000),
    "smolvla": Real(smolvla, (256, 256), CAMERAS, 1_800_000_000, 1_800_000_000),
    "act": Real(resnet, (480, 640), CAMERAS[:2], 210_000_000, 210_000_000),
    "diffusion": Real(resnet, (240, 320), CAMERAS[:2], 1_110_000_000, 1_110_000_000),
    "xvla": Real(xvla, (224, 224), CAMERAS, 1_760_000_000, 3_510_000_000),
    "pi0": Real(pi, (224, 224), CAMERAS, 8_900_000_000, 16_120_000_000),
}
"""By `config.type`."""


def save_policy(family: str, folder: Path) -> Path:
    """Writes a policy folder as LeRobot's training does, and returns it."""
    config = real_config(family, folder)
    torch.manual_seed(0)
    with LargeUnfilled():
        policy = get_policy_class(config.type)(config)
    fill(policy)
    local = own_tokenizer(folder) if (folder / "tokenizer").is_dir() else nullcontext()
    with local:
        before, after = make_pre_post_processors(config, dataset_stats=statistics(config))
    for part in (policy, before, after):
        part.save_pretrained(folder / "policy")
    return folder / "policy"


def real_config(family: str, folder: Path) -> PreTrainedConfig:
    """LeRobot's default configuration; parts that it names are saved into the folder."""
    real = REAL[family]
    state = PolicyFeature(FeatureType.STATE, (STATE_DIM,))
    picture = PolicyFeature(FeatureType.VISUAL, (3, *real.pictures))
    return make_policy_config(
        family,
        device="cpu",
        input_features={"observation.state": state}
        | {f"observation.images.{camera}": picture for camera in real.cameras},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
        **real.config(folder),
    )


def statistics(config: PreTrainedConfig) -> dict[str, dict[str, torch.Tensor]]:
    """Of a made-up data set, for every normalisation: mean 0 and deviation 1, from -3 to 3."""
    dims = {"observation.state": (STATE_DIM,), "action": (ACTION_DIM,)}
    dims |= dict.fromkeys(config.image_features, (3, 1, 1))
    return {
        key: {
            "mean": torch.zeros(shape),
            "std": torch.ones(shape),
            **dict.fromkeys(("min", "q01"), torch.full(shape, -3.0)),
            **dict.fromkeys(("max", "q99"), torch.full(shape, 3.0)),
        }
        for key, shape in dims.items()
    }


class LargeUnfilled(Unfilled):
    """As `Unfilled`, for large matrices only: norms, biases and small layers begin as they do in
    LeRobot."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        target = args[0] if args else (kwargs or {}).get("tensor")
        if isinstance(target, nn.Parameter) and is_large(target):
            return super().__torch_function__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


def is_large(parameter: torch.Tensor) -> bool:
    return bool(parameter.ndim > 1 and parameter.numel() >= LARGE)


@torch.no_grad()
def fill(policy: nn.Module) -> None:
    """Gives large matrices normal values of deviation 1 / sqrt(inputs), which are one block of
    BLOCK values again and again, and adds small values to all others: what LeRobot begins with at
    zero, such as gates, shall say something. The same in every run."""
    block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))
    for place, parameter in enumerate(policy.parameters()):
        own = block.roll(7919 * place)
        if not is_large(parameter):
            noise = own[: parameter.numel()].view(parameter.shape)
            parameter += (0.02 * noise).to(parameter.dtype)
            continue
        own = (own * parameter[0].numel() ** -0.5).to(parameter.dtype)
        values = parameter.data.view(-1)
        for part in values.split(BLOCK):
            part.copy_(own[: len(part)])


def byte_tokenizer(**extra: str) -> PreTrainedTokenizerFast:
    """A lossless tokenizer: one token per byte. `extra`: further special tokens by name."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<pad>", "<bos>", "<eos>", "<unk>"]
    vocabulary = {token: number for number, token in enumerate(specials + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{name[1:-1]}_token": name for name in specials},
        extra_special_tokens=extra,
    )


@contextmanager
def own_tokenizer(folder: Path) -> Iterator[None]:
    """Processors of a new pi policy name a tokenizer of the hub: that of the folder is read."""
    original = tokenizer_processor.AutoTokenizer

    class Local:
        @staticmethod
        def from_pretrained(_name: str, **options: Any) -> Any:
            return original.from_pretrained(folder / "tokenizer", **options)

    with patch.object(tokenizer_processor, "AutoTokenizer", Local):
        yield


def around_loading(family: str, size: str) -> AbstractContextManager[None]:
    """What must surround the making and the loading of a policy."""
    if size == "real":
        return nullcontext()
    from tiny_policies import TINY  # test/support/policies, which the caller puts on the path

    surrounding: AbstractContextManager[None] = TINY[family].loaded()
    return surrounding


def save_sized(family: str, size: str, folder: Path) -> Path:
    """A policy folder of a family: `size` is real, or tiny as in the tests."""
    folder.mkdir(parents=True, exist_ok=True)
    if size == "real":
        return save_policy(family, folder)
    from tiny_policies import save_policy as save_tiny

    saved: Path = save_tiny(family, folder)
    return saved
