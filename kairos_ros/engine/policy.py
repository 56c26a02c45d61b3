"""Loading a policy exactly as LeRobot saved it: configuration, weights, processors."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.utils.import_utils import register_third_party_plugins
from torch import nn

import kairos_ros.engine.flow_mlp.configuration_flow_mlp  # noqa: F401  registers its type
from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.engine.seam import EngineOptions, Progress
from kairos_ros.engine.weights import fingerprint, verify_weights

WEIGHTS = "model.safetensors"
PREPROCESSOR = "policy_preprocessor.json"
DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with its processors, its weights verified against the file."""

    policy: nn.Module
    """A LeRobot PreTrainedPolicy in evaluation mode, on its device."""
    preprocess: Callable[[dict[str, Any]], dict[str, Any]]
    postprocess: Callable[[torch.Tensor], torch.Tensor]
    policy_id: str
    device: torch.device
    dtype: str
    autocast: bool
    """Whether bfloat16 comes from autocasting float32 weights (else the weights have it)."""

    @property
    def config(self) -> PreTrainedConfig:
        return self.policy.config


def load_policy(options: EngineOptions, progress: Progress) -> LoadedPolicy:
    """Loads a LeRobot policy folder or hub id.

    Raises PolicyError when something is missing, does not fit or was not really loaded, and
    ConfigError for a device or dtype that this machine has not.
    """
    device = choose_device(options.device)
    if options.dtype not in DTYPES:
        raise ConfigError(f"dtype {options.dtype!r}; use one of {', '.join(DTYPES)}")
    register_third_party_plugins()
    progress(f"reading {options.policy}")
    weights = _policy_file(options.policy, WEIGHTS)
    config = _third_party(options, PreTrainedConfig.from_pretrained, options.policy)
    dtype, autocast = _configure(config, device, options.dtype)
    progress(f"loading {config.type} on {device}")
    policy_class = _third_party(options, get_policy_class, config.type)
    policy = _third_party(options, policy_class.from_pretrained, options.policy, config=config)
    policy.to(device)
    policy.eval()
    progress("verifying weights")
    verify_weights(policy, weights)
    progress("loading processors")
    overrides = _processor_overrides(options, device)
    preprocess, postprocess = _third_party(
        options,
        make_pre_post_processors,
        config,
        pretrained_path=options.policy,
        preprocessor_overrides=overrides,
    )
    parts = [weights.parent / "config.json", weights, *weights.parent.glob("policy_p*processor*")]
    return LoadedPolicy(
        policy=policy,
        preprocess=preprocess,
        postprocess=postprocess,
        policy_id=f"{config.type}-{fingerprint(parts)}",
        device=device,
        dtype=dtype,
        autocast=autocast,
    )


def choose_device(name: str) -> torch.device:
    """auto: cuda where present, else cpu. Raises ConfigError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r}; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA GPUs"
        )
    return device


def _configure(config: PreTrainedConfig, device: torch.device, asked: str) -> tuple[str, bool]:
    """Adapts a saved configuration to serving; returns the dtype and whether to autocast."""
    config.device = str(device)
    if getattr(config, "use_peft", False):
        raise PolicyError("a PEFT adapter; merge it into its base policy and save that")
    if hasattr(config, "rtc_config"):
        config.rtc_config = None  # its hook is the update tap
    if hasattr(config, "compile_model"):
        config.compile_model = False  # a compiled sampler does not report its steps
    if hasattr(config, "pretrained_backbone_weights"):
        config.pretrained_backbone_weights = None  # would be fetched only to be overwritten
    if hasattr(config, "dtype"):
        config.dtype = config.dtype if asked == "auto" else asked
        return config.dtype, False
    return ("bfloat16", True) if asked == "bfloat16" else ("float32", False)


def _policy_file(policy: str, name: str) -> Path:
    """A file of a policy folder, or of a hub repository (downloaded, or from the local cache)."""
    if Path(policy).is_dir():
        file = Path(policy) / name
        if not file.is_file():
            raise PolicyError(f"policy folder {policy} has no {name}")
        return file
    try:
        return Path(hf_hub_download(policy, name))
    except Exception as error:  # many kinds, for: no such id, no such file, no network, no right
        raise PolicyError(
            f"policy {policy!r} is no folder here, and as a hub id it has no {name}: {error}"
        ) from error


def _processor_overrides(options: EngineOptions, device: torch.device) -> dict[str, dict[str, str]]:
    saved = json.loads(_policy_file(options.policy, PREPROCESSOR).read_text())
    steps = {step.get("registry_name") for step in saved.get("steps", [])}
    overrides = {"device_processor": {"device": str(device)}} if "device_processor" in steps else {}
    if options.tokenizer:
        if "tokenizer_processor" not in steps:
            raise ConfigError(
                f"tokenizer {options.tokenizer!r} given, but {options.policy} has none to replace"
            )
        overrides["tokenizer_processor"] = {"tokenizer_name": options.tokenizer}
    return overrides


def _third_party(
    options: EngineOptions, call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls LeRobot; whatever it raises about a policy folder becomes a PolicyError."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        kind = type(error).__name__
        raise PolicyError(f"policy {options.policy} does not load: {kind}: {error}") from error
