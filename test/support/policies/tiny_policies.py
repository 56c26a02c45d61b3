"""Small real LeRobot policies, made from their own configuration classes and saved as folders.

Nothing of a policy is replaced; only widths, depths and vocabularies are small. Weights are
random, drawn so that the output depends on every input.
"""

from pathlib import Path

import torch
from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
from lerobot.policies.factory import (
    get_policy_class,
    make_policy_config,
    make_pre_post_processors,
)
from tiny_families import TINY
from tiny_families.base import (
    ACTION_DIM,
    CAMERA,
    CHUNK,
    INSTRUCTIONS,
    SIZE,
    STATE_DIM,
    STEPS,
    WRIST,
    visual,
)
from tiny_families.pi import small_pi

import kairos_ros.engine.flow_mlp.configuration_flow_mlp  # noqa: F401  registers its type

__all__ = [
    "ACTION_DIM",
    "CAMERA",
    "CHUNK",
    "INSTRUCTIONS",
    "SIZE",
    "STATE_DIM",
    "STEPS",
    "TINY",
    "WRIST",
    "save_policy",
    "small_pi",
]


def save_policy(kind: str, folder: Path, **changes) -> Path:
    """A policy folder as LeRobot's own training writes it; `kind` of `TINY`."""
    tiny = TINY[kind]
    config = tiny_config(kind, folder, **changes)
    torch.manual_seed(0)  # the same weights in every run: some draws hardly see their images
    with tiny.loaded(), tiny.built(folder):
        policy = get_policy_class(config.type)(config)
        randomise(policy)
        tiny.trained(policy)
        pre, post = make_pre_post_processors(config, dataset_stats=statistics(config))
    target = folder / "policy"
    for part in (policy, pre, post):
        part.save_pretrained(target)
    return target


def tiny_config(kind: str, folder: Path, **changes) -> PreTrainedConfig:
    tiny = TINY[kind]
    state = {"observation.state": PolicyFeature(FeatureType.STATE, (STATE_DIM,))}
    options = {
        "device": "cpu",
        "input_features": state | {camera: visual() for camera in tiny.cameras},
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
    }
    return make_policy_config(tiny.type, **options | tiny.config(folder) | changes)


def statistics(config: PreTrainedConfig) -> dict[str, dict[str, torch.Tensor]]:
    """Data set statistics that every normalisation mode finds its numbers in."""
    features = config.input_features | config.output_features
    dims = {
        name: (3, 1, 1) if feature.type is FeatureType.VISUAL else feature.shape
        for name, feature in features.items()
    }
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
