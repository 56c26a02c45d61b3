"""Loading a policy exactly as LeRobot saved it: configuration, weights, processors."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import transformers.dynamic_module_utils as remote_code
from lerobot.configs import FeatureType, NormalizationMode, PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot.processor import (
    NormalizerProcessorStep,
    PolicyProcessorPipeline,
    ProcessorStepRegistry,
    UnnormalizerProcessorStep,
)
from lerobot.utils.import_utils import register_third_party_plugins
from torch import nn

import kairos_ros.engine.flow_mlp.configuration_flow_mlp  # noqa: F401  registers its type
from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.engine.interface import EngineOptions, Progress
from kairos_ros.engine.policies.families import family_code
from kairos_ros.engine.policies.policy_folder import (
    PolicyFolder,
    check_registered,
    read_policy_folder,
    unserved,
)
from kairos_ros.engine.policies.policy_source import CONFIG, one_line, policy_id
from kairos_ros.engine.policies.sampler import FamilyCode
from kairos_ros.engine.policies.saved_policy import PolicyInputs, saved_inputs
from kairos_ros.engine.policies.served import FAMILIES, GUIDED, LEAVE_OUT, TOKENIZER, tokenizer_of
from kairos_ros.engine.policies.unfilled import Unfilled
from kairos_ros.engine.policies.weights import verify_weights

log = logging.getLogger(__name__)
DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy with its processors, its weights verified against the file."""

    policy: nn.Module
    """A LeRobot PreTrainedPolicy in evaluation mode, on its device."""
    family: FamilyCode
    preprocess: Callable[[dict[str, Any]], dict[str, Any]]
    postprocess: Callable[[torch.Tensor], torch.Tensor]
    output_steps: tuple[str, ...]
    """Names of the postprocessor's steps that are not switched off."""
    policy_id: str
    inputs: PolicyInputs
    device: torch.device
    dtype: str
    autocast: bool
    """Whether bfloat16 comes from autocasting float32 weights (else the weights have it)."""

    def units(self, action_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Offset and gain, float32 [action_dim], on the CPU: robot units = offset + gain * model's.

        What the postprocessor makes of 0 and of 1: of an affine one they say all.
        """
        padded = self.family.padded_dim
        width = padded(self.config) if padded else action_dim
        normalised = torch.zeros(2, 1, width, device=self.device)
        normalised[1] = 1.0
        zero, one = self.postprocess(normalised).float().cpu()[:, 0]
        return zero, one - zero

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
    progress(f"reading {options.policy}")
    folder = read_policy_folder(options)
    _register_plugins(folder, options)
    config = _read_config(folder)
    family = family_code(folder.type)
    dtype, autocast = _configure(config, device, options.dtype)
    family.configure(config)
    if dtype == "auto":  # as it was saved: what the family makes of it
        dtype = config.dtype
    if hasattr(config, "rtc_config"):  # its hook is the update tap
        config.rtc_config = RTCConfig(enabled=True) if folder.type in GUIDED else None
    if family.dtype:
        if options.dtype not in ("auto", family.dtype):
            raise ConfigError(
                f"dtype {options.dtype!r}: {config.type} computes in {family.dtype} only"
            )
        dtype, autocast = family.dtype, False
    if options.compile and not family.step:
        raise PolicyError(
            f"compile: policies of type {config.type!r} cannot be compiled here; {LEAVE_OUT}"
        )
    progress(f"loading {config.type} on {device}")
    policy_class = _third_party(options, get_policy_class, config.type)
    with Unfilled():
        policy = _third_party(
            options, policy_class.from_pretrained, str(folder.path), config=config
        )
    _third_party(options, policy.to, device)
    policy.eval()
    progress("verifying weights")
    verify_weights(policy, folder.weights, family.renamed)
    progress("loading processors")
    preprocess, postprocess = _third_party(
        options,
        make_pre_post_processors,
        config,
        pretrained_path=str(folder.path),
        preprocessor_overrides=_processor_overrides(folder, config, options, device),
    )
    for pipeline in (preprocess, postprocess):
        _check_statistics(pipeline, options)
    return LoadedPolicy(
        policy=policy,
        family=family,
        preprocess=preprocess,
        postprocess=postprocess,
        output_steps=tuple(
            step.get("registry_name", "")
            for step in folder.postprocessor
            if step.get("config", {}).get("enabled", True)
        ),
        policy_id=policy_id(folder.path, config.type),
        inputs=_third_party(options, saved_inputs, folder.path),
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
    if hasattr(config, "compile_model"):
        config.compile_model = False  # compiles what the tap is in, anew for every batch size
    if hasattr(config, "pretrained_backbone_weights"):
        config.pretrained_backbone_weights = None  # would be fetched only to be overwritten
    if hasattr(config, "use_bf16"):  # GR00T's own autocast
        config.use_bf16 = asked == "bfloat16" or (asked == "auto" and config.use_bf16)
        asked = "bfloat16" if config.use_bf16 else "float32"
    for field in ("dtype", "torch_dtype", "model_dtype"):
        if hasattr(config, field):
            if asked != "auto":
                setattr(config, field, asked)
            return getattr(config, field), False
    return ("bfloat16", True) if asked == "bfloat16" else ("float32", False)


def _register_plugins(folder: PolicyFolder, options: EngineOptions) -> None:
    """Imports what is installed, so that the rest of the folder can be judged. Raises PolicyError
    for a type or a processor step that is not served."""
    remote_code.TIME_OUT_REMOTE_CODE = 0  # nobody at a terminal is asked whether to run it
    register_third_party_plugins()
    if folder.type not in FAMILIES:
        known = PreTrainedConfig.get_known_choices()
        if folder.type not in known or _of_lerobot(known[folder.type]):
            raise PolicyError(unserved(folder.type))
    steps = {name: ProcessorStepRegistry.get(name) for name in ProcessorStepRegistry.list()}
    check_registered(folder, options, {name: step.__module__ for name, step in steps.items()})


def _of_lerobot(thing: type) -> bool:
    return thing.__module__.partition(".")[0] == "lerobot"


def _processor_overrides(
    folder: PolicyFolder, config: PreTrainedConfig, options: EngineOptions, device: torch.device
) -> dict[str, dict[str, Any]]:
    steps = {step.get("registry_name") for step in folder.preprocessor}
    family = FAMILIES.get(folder.type)
    own = family.overrides(vars(config)) if family else {}
    overrides = {step: dict(fields) for step, fields in own.items() if step in steps}
    if "device_processor" in steps:
        overrides["device_processor"] = {"device": str(device)}
    if options.tokenizer:
        reader, name = tokenizer_of(folder.type)
        overrides.setdefault(reader, {})[name] = options.tokenizer
    if options.compile and TOKENIZER[0] in steps:  # instructions of one length: one set of shapes
        overrides.setdefault(TOKENIZER[0], {})["padding"] = "max_length"
    return overrides


def _check_statistics(pipeline: PolicyProcessorPipeline, options: EngineOptions) -> None:
    """Raises PolicyError where a state or an action would be left as it is for want of the numbers
    that scale it: LeRobot says nothing of that, and robots would move by the model's own units."""
    for step in pipeline.steps:
        if not isinstance(step, NormalizerProcessorStep | UnnormalizerProcessorStep):
            continue
        for key, feature in step.features.items():
            mode = step.norm_map.get(feature.type, NormalizationMode.IDENTITY)
            if mode == NormalizationMode.IDENTITY:
                continue
            if feature.type == FeatureType.VISUAL and key not in step.stats:
                _warn_of_renamed(key, step, options)  # cameras that do not exist have none, too
            elif key not in step.stats:
                raise PolicyError(
                    f"policy {options.policy} scales {key} by {mode.value}, and its processors "
                    "hold no statistics of it; save them with those of the data it was trained on "
                    "(make_pre_post_processors(config, dataset_stats=...)), or with "
                    "normalization_mapping IDENTITY where it was trained without"
                )
            else:
                _check_scale(key, step.stats[key], mode, options)


def _warn_of_renamed(
    key: str, step: NormalizerProcessorStep | UnnormalizerProcessorStep, options: EngineOptions
) -> None:
    """Of a camera whose pictures stay unscaled, while there are numbers for one of another name:
    LeRobot does so, too, also while it trains with `rename_map`, so the policy is served."""
    others = sorted(name for name in step.stats if "image" in name and name not in step.features)
    if others:
        log.warning(
            "policy %s: pictures of %s are not scaled: the processors have no statistics of them, "
            "but of %s; if config.json was edited, rename these, too",
            options.policy,
            key,
            ", ".join(others),
        )


def _check_scale(
    key: str, stats: Mapping[str, Any], mode: NormalizationMode, options: EngineOptions
) -> None:
    """Raises PolicyError for numbers that are none; warns of what LeRobot divides by nearly 0."""
    numbers = {name: np.asarray(value, np.float64) for name, value in stats.items()}
    for name, values in numbers.items():
        if not np.isfinite(values).all():
            raise PolicyError(
                f"policy {options.policy}: {name} of {key} has values that are not finite"
            )
    match mode:
        case NormalizationMode.MEAN_STD:
            spread = numbers["std"]
        case NormalizationMode.MIN_MAX:
            spread = numbers["max"] - numbers["min"]
        case _:
            return
    constant = np.flatnonzero(spread == 0).tolist()
    if constant and key.startswith("observation."):
        log.warning(
            "policy %s: %s never changed at %s in the data that it was trained on; LeRobot scales "
            "any other value there by 1e8, and what the policy does then is not known",
            options.policy,
            key,
            constant,
        )


def _read_config(folder: PolicyFolder) -> PreTrainedConfig:
    """Raises PolicyError where LeRobot cannot make its configuration class of config.json."""
    try:
        return PreTrainedConfig.from_pretrained(folder.path)
    except Exception as error:  # many kinds, of draccus and of the class
        raise PolicyError(
            f"{folder.path / CONFIG} is not what LeRobot {version('lerobot')} saves for a policy "
            f"of type {folder.type!r:.60}: {_said_by(error)}"
        ) from error


def _third_party(
    options: EngineOptions, call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls LeRobot; whatever it raises about a policy folder becomes a PolicyError."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        raise PolicyError(f"policy {options.policy} does not load: {_said_by(error)}") from error


def _said_by(error: Exception) -> str:
    why = f" ({one_line(error.__cause__)})" if error.__cause__ else ""
    return f"{type(error).__name__}: {one_line(error)}{why}"
