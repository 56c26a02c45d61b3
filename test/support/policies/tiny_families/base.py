"""What all tiny policies have, and what a family says of its own."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lerobot.configs import FeatureType, PolicyFeature
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

STATE_DIM = 5
ACTION_DIM = 3
CHUNK, STEPS = 12, 6
CAMERA = "observation.images.top"
WRIST = "observation.images.wrist"
"""The second camera of ACT."""
SIZE = (32, 48)
INSTRUCTIONS = ["open the drawer", "close the drawer"]


def visual(height: int = SIZE[0], width: int = SIZE[1]) -> PolicyFeature:
    return PolicyFeature(FeatureType.VISUAL, (3, height, width))


def predicted(policy: Any, batch: dict[str, Any], noise: Tensor | None) -> Tensor:
    """LeRobot's own chunk [B, N, D]."""
    return policy.predict_action_chunk(batch, **({} if noise is None else {"noise": noise}))


def from_queues(policy: Any, batch: dict[str, Any], noise: Tensor | None) -> Tensor:
    """As `predicted`, of a policy that reads its own queues of observations."""
    config = policy.config
    pictures = torch.stack([batch[key] for key in config.image_features], dim=-4)
    batch = batch | {"observation.images": pictures}
    del batch["action"]  # a key without a value, that `select_action` takes out too
    policy.reset()
    for step in range(config.n_obs_steps):
        for key in ("observation.state", "observation.images"):
            policy._queues[key].append(batch[key][:, step])
    return policy.predict_action_chunk(batch)


@dataclass(frozen=True)
class Tiny:
    """How a tiny policy is built and loaded, and what the conformance tests may ask of it."""

    type: str
    """`config.type`."""
    config: Callable[[Path], dict[str, Any]]
    """Fields of its configuration. What it is built on is saved into the folder."""
    built: Callable[[Path], AbstractContextManager] = lambda folder: nullcontext()
    """Around the making of a new one; `folder` is the one that `config` has been given."""
    loaded: Callable[[], AbstractContextManager] = nullcontext
    """Around the making and the loading: what LeRobot hard-codes is small meanwhile."""
    trained: Callable[[Any], None] = lambda policy: None
    """Does to a new policy what training does besides changing its parameters."""
    cameras: tuple[str, ...] = (CAMERA,)
    steps: int = STEPS
    """K."""
    chunk: int = CHUNK
    """What it says of its chunks; those of the tests have CHUNK actions."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """What LeRobot computes in on a CPU; the first where nothing is asked for."""
    largest_batch: int = 4
    """Of those that the tests ask for: 1 where LeRobot takes one robot at a time."""
    reads_state: bool = True
    reads_text: bool = True
    instructions: tuple[str, ...] | None = None
    """Its closed set."""
    draws: bool = True
    """Whether a chunk depends on the seed."""
    unit: float = 2.0
    """Robot units per unit of the model, of `tiny_policies.statistics`."""
    noise_shape: tuple[int, int] | None = (CHUNK, ACTION_DIM)
    """[N, D] of the noise that a chunk begins with. None: it begins with none."""
    uniform: bool = False
    """Whether its noise is uniform in -1..1, else normal."""
    first: int = 0
    """The row of the noise that the chunk begins with."""
    lerobot: Callable[[Any, dict[str, Any], Tensor | None], Tensor] | None = predicted
    """LeRobot's own chunk for a preprocessed batch and the noise. None: it cannot be told which
    noise to use, and there is nothing to compare with."""
    seeded: bool = False
    """Whether LeRobot takes no noise and draws from the global generator: it is asked for one robot
    at a time, with the robot's seed there."""
    sums: bool = True
    """Whether noise + updates = chunk, where all of the noise is of actions."""
    writes: bool = False
    """Whether its actions are tokens: with other rounding they are the same, or quite others."""


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
