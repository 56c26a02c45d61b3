"""A policy folder, judged before anything of it is loaded: it comes from whoever made the policy.

LeRobot imports and calls what a saved processor names, so the names are read first. Everything here
is JSON and takes milliseconds; this module imports neither torch nor LeRobot.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.wire_check import OBSERVATIONS
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.policies.policy_source import (
    CONFIG,
    WEIGHTS,
    PolicySource,
    is_path,
    one_line,
    why_missing,
)
from kairos_ros.engine.policies.served import (
    FAMILIES,
    LEAVE_OUT,
    REFUSED,
    Overrides,
    not_guided,
    tokenizer_of,
)

MOST_SIZE = 10_000
"""Of a chunk, and of sampler steps and layers: real ones have at most a thousand."""
_LENGTH = re.compile(r"^(chunk_size|n_action_steps)$|horizon$")
_SIZE = re.compile(r"^n(um)?_(?!.*training).*(steps|layers)$")
FEATURES = ("input_features", "output_features")
ADAPTER = "adapter_config.json"
PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
LFS_POINTER = b"version https://git-lfs"
"""A large file of a clone begins so where Git LFS has not fetched it."""

PLUGINS = "lerobot_policy_"
"""Distributions that LeRobot imports begin so."""

STEPS = frozenset(
    {
        "absolute_actions_processor",
        "device_processor",
        "image_crop_resize_processor",
        "map_delta_action_to_robot_action",
        "map_tensor_to_delta_action_dict",
        "normalizer_processor",
        "observation_processor",
        "relative_actions_processor",
        "rename_observations_processor",
        "to_batch_processor",
        "to_batch_processor_action",
        "to_batch_processor_complementary_data",
        "to_batch_processor_observation",
        "tokenizer_processor",
        "unnormalizer_processor",
    }
)
"""LeRobot's steps that compute on what they are given, besides the steps of a family.
Others load a second model (reward_classifier_processor) or run code from the hub
(action_tokenizer_processor)."""


@dataclass(frozen=True, slots=True)
class PolicyFolder:
    """A policy as far as it is known without loading it."""

    path: Path
    """Holds config.json, model.safetensors, the two processors and their states."""
    type: str
    preprocessor: tuple[Mapping[str, Any], ...]
    """Its steps, as saved."""
    postprocessor: tuple[Mapping[str, Any], ...]

    @property
    def weights(self) -> Path:
        return self.path / WEIGHTS


def read_policy_folder(options: EngineOptions) -> PolicyFolder:
    """Reads and judges the folder or hub repository `options.policy`.

    Raises PolicyError, in one line, for a PEFT adapter, a type that is not served, a part that is
    missing, torn or was not fetched, more observations than robots keep, a size that nobody has, a
    processor step that may not be loaded (one that is registered by nobody yet is judged by
    `check_registered`), a tokenizer that is not to be had, and `rtc` where the type cannot be
    guided; ConfigError for a tokenizer that replaces nothing.
    """
    folder = PolicySource.of(options.policy)
    adapter = (folder.path / ADAPTER).is_file() and not folder.weights.is_file()
    config = {} if adapter else folder.json(CONFIG)
    if adapter or config.get("use_peft"):
        raise PolicyError(
            f"policy {options.policy} is a PEFT adapter; merge it into its base policy, save that"
        )
    kind = config.get("type")
    if not isinstance(kind, str):
        raise PolicyError(f"{folder.path / CONFIG} has no policy type")
    if kind in REFUSED or (kind not in FAMILIES and not _plugins()):
        raise PolicyError(unserved(kind))
    if options.rtc and (why := not_guided(kind)):
        raise PolicyError(f"{why}; {LEAVE_OUT}")
    for part in FEATURES:
        if not isinstance(config.get(part) or {}, dict):
            raise PolicyError(f"policy {options.policy}: {part} in {CONFIG} is no JSON object")
    read = config.get("n_obs_steps")
    if isinstance(read, int) and read > OBSERVATIONS:
        raise PolicyError(
            f"policy {options.policy} reads {read} observations (n_obs_steps in {CONFIG}); robots "
            f"keep at most {OBSERVATIONS}"
        )
    _check_sizes(options.policy, config)
    if kind in FAMILIES:
        if "action" not in (config.get("output_features") or {}):
            raise PolicyError(
                f"policy {options.policy} has no output 'action' (output_features in {CONFIG})"
            )
        _check_packages(kind)
    if not folder.commit:
        folder.file(WEIGHTS)
    overrides = FAMILIES[kind].overrides(config) if kind in FAMILIES else {}
    pre, post = (_steps(folder, name, options, overrides) for name in PROCESSORS)
    _check_not_overridden(post, overrides, options)
    if kind in FAMILIES and (objection := FAMILIES[kind].objection(config, pre)):
        raise PolicyError(f"policy {options.policy} is not served: {objection}")
    _check_parts(config, pre, options)
    states = {str(step["state_file"]) for step in (*pre, *post) if step.get("state_file")}
    for name in (*sorted(states), WEIGHTS):  # of a hub repository: now worth the download
        _check_whole(folder.file(name))
    return PolicyFolder(folder.path, kind, pre, post)


def _check_sizes(policy: str, config: Mapping[str, Any]) -> None:
    """Raises PolicyError for a number that would fill the memory or take hours before LeRobot or
    anybody else notices."""
    for name, value in config.items():
        length = _LENGTH.search(name) is not None
        if not (isinstance(value, int) and (length or _SIZE.search(name))):
            continue
        if value > MOST_SIZE or (length and value < 1):
            raise PolicyError(
                f"policy {policy} says {name}: {value} in {CONFIG}; what is served has 1 to "
                f"{MOST_SIZE}"
            )


def _check_whole(file: Path) -> None:
    """Raises PolicyError for what is no whole safetensors file. Reads its header only."""
    from safetensors import SafetensorError, safe_open

    try:
        with file.open("rb") as stream:
            if stream.read(len(LFS_POINTER)) == LFS_POINTER:
                raise PolicyError(
                    f"{file} is a pointer of Git LFS and holds no weights; run `git lfs pull` in "
                    "the clone that it comes from"
                )
        with safe_open(file, framework="numpy"):
            pass
    except OSError as error:
        raise PolicyError(f"{file} cannot be read: {error.strerror or one_line(error)}") from error
    except SafetensorError as error:
        raise PolicyError(
            f"{file} is no whole safetensors file ({one_line(error)}); copy or download it again"
        ) from error


def _check_packages(kind: str) -> None:
    """Raises PolicyError where a package is not installed that the policy imports."""
    family = FAMILIES[kind]
    missing = [package for package in family.packages if find_spec(package) is None]
    if missing:
        raise PolicyError(
            f"policies of type {kind!r} need packages that are not installed "
            f"({', '.join(missing)}): install lerobot[{family.extra}] of the same version"
        )


def unserved(kind: str) -> str:
    """What to say of a policy type that is not served."""
    if kind in REFUSED:
        return f"policies of type {kind!r} are not served: {REFUSED[kind]} (docs/engine.md)"
    return (
        f"policies of type {kind!r:.60} are not served; served are {', '.join(FAMILIES)}, and "
        f"what an installed {PLUGINS}* package registers (docs/engine.md)"
    )


def check_registered(
    folder: PolicyFolder, options: EngineOptions, modules: Mapping[str, str]
) -> None:
    """`modules`: name of every registered step -> module of its class, once plugins are imported.

    Raises PolicyError for a step of LeRobot's that does more than compute, and for one that nobody
    registers.
    """
    known = STEPS | FAMILIES[folder.type].steps if folder.type in FAMILIES else STEPS
    for step in (*folder.preprocessor, *folder.postprocessor):
        name = step.get("registry_name", "")
        if not name or name in known or name in _allowed(options):
            continue
        if name not in modules:
            raise PolicyError(
                f"policy {options.policy}: nobody registers the processor step {name!r:.80}; "
                "install the package that it comes from"
            )
        if modules[name].partition(".")[0] == "lerobot":
            raise PolicyError(
                f"policy {options.policy}: the processor step {name!r:.80} may load models or code "
                "beside this policy; name it in allowed_steps if it shall"
            )


def _steps(
    folder: PolicySource, name: str, options: EngineOptions, overrides: Overrides
) -> tuple[Mapping[str, Any], ...]:
    """With what they are loaded with in the place of what was saved."""
    try:
        folder.file(name)
    except PolicyError as error:
        raise PolicyError(
            f"{error}; where an old LeRobot saved the policy, `python -m lerobot.processor."
            f"migrate_policy_normalization --pretrained-path {folder.policy}` writes it"
        ) from error
    steps = folder.json(name).get("steps")
    if not isinstance(steps, list):
        raise PolicyError(f"{folder.path / name} has no list of steps")
    for step in steps:
        if isinstance(step, dict) and isinstance(step.get("config"), dict):
            step["config"] |= overrides.get(str(step.get("registry_name")), {})
        _check_step(step, folder, name, options)
    return tuple(steps)


def _check_not_overridden(
    steps: tuple[Mapping[str, Any], ...], overrides: Overrides, options: EngineOptions
) -> None:
    """Raises PolicyError for a step of a postprocessor, which is loaded as it was saved, that a
    preprocessor may have only because its configuration is replaced."""
    for step in steps:
        if step.get("registry_name") in overrides:
            raise PolicyError(
                f"policy {options.policy}, {PROCESSORS[1]}: the step "
                f"{step['registry_name']!r:.80} belongs into a preprocessor"
            )


def _check_step(step: Any, folder: PolicySource, name: str, options: EngineOptions) -> None:
    """Raises PolicyError for a step that LeRobot would import by itself, that runs code from the
    hub, or whose state is read from elsewhere."""
    where = f"policy {folder.policy}, {name}"
    if not isinstance(step, dict) or not isinstance(step.get("config", {}), dict):
        raise PolicyError(f"{where}: a step is no JSON object")
    registered = step.get("registry_name")
    called = registered if "registry_name" in step else step.get("class")
    if not isinstance(called, str):
        raise PolicyError(f"{where}: a step has no name")
    allowed = called in _allowed(options)
    if "registry_name" not in step and not allowed:
        raise PolicyError(
            f"{where}: the step {called!r:.80} would be imported by its path, which can run "
            "anything; only registered steps are loaded, and paths named in allowed_steps"
        )
    if step.get("config", {}).get("trust_remote_code") and not allowed:
        raise PolicyError(f"{where}: the step {called!r:.80} would run code from the hub")
    state = step.get("state_file", "")
    if not isinstance(state, str) or "/" in state or state.startswith("."):
        raise PolicyError(f"{where}: the state {state!r:.80} is no file beside it")
    if state:
        folder.file(state)


def _allowed(options: EngineOptions) -> set[str]:
    return {name.strip() for name in options.allowed_steps.split(",")}


def _check_parts(
    config: Mapping[str, Any], steps: tuple[Mapping[str, Any], ...], options: EngineOptions
) -> None:
    """Raises PolicyError where loading would end at a tokenizer, or at a model that the policy is
    built on, that is neither here nor on the hub; ConfigError for option `tokenizer` where there is
    none to replace."""
    reader, name_field = tokenizer_of(config["type"])
    named = [s.get("config", {}) for s in steps if s.get("registry_name") == reader]
    if options.tokenizer and not named:
        raise ConfigError(
            f"tokenizer {options.tokenizer!r} given, but {options.policy} has none to replace"
        )
    family = FAMILIES.get(config["type"])
    for part in family.parts if family else ():
        name = part.named(config)
        if name and (reason := why_missing(name, part.file)):
            inside = f" --include '{part.file.rpartition('/')[0]}/*'" if "/" in part.file else ""
            fetch = f"fetch it once with `hf download {name:.200}{inside}`"
            ways = [] if is_path(name) else [fetch]
            ways += [f"write its folder into {part.field} of {CONFIG}"] if part.field else []
            raise PolicyError(
                f"policy {options.policy} is built on {name!r:.200}, which is not on this host "
                f"({reason}); {', or '.join(ways)}"
            )
    for step in named:
        name = options.tokenizer or step.get(name_field)
        if isinstance(name, str) and (reason := why_missing(name, "tokenizer_config.json")):
            raise PolicyError(
                f"policy {options.policy} needs the tokenizer {name!r:.200}, which is not on this "
                f"host ({reason}); give a folder that holds it as option `tokenizer`"
            )
        if family and family.publisher:
            _check_brings_no_code(name, family.publisher)
    if family and family.publisher:
        for part in family.parts:
            _check_backbone(part.named(config), family.publisher)


def _check_backbone(name: str, publisher: str) -> None:
    """Also of the model that its own configuration names."""
    if name:
        _check_brings_no_code(name, publisher)
    if (Path(name) / CONFIG).is_file():
        further = PolicySource(name, Path(name)).json(CONFIG).get("model_name")
        _check_brings_no_code(further, publisher)


def _check_brings_no_code(built_on: Any, publisher: str) -> None:
    """Raises PolicyError for a folder or hub id of which LeRobot would run code, or may by then."""
    if not isinstance(built_on, str):
        return  # LeRobot's own default, of the publisher
    if not Path(built_on).is_dir():
        if not built_on.startswith(f"{publisher}/"):
            raise PolicyError(
                f"{built_on!r:.200} may run code of its own; fetch it, look at it, and give its "
                f"folder (repositories of {publisher} are read as they are)"
            )
        return
    source = PolicySource(built_on, Path(built_on))
    for file in sorted(source.path.glob("*config.json")):
        if '"auto_map"' in json.dumps(source.json(file.name)):
            raise PolicyError(f"{file} contains code (auto_map), which is not run")


def _plugins() -> bool:
    """Whether a package is installed that may register further types."""
    from importlib.metadata import distributions  # a serving node never needs it

    names = {d.metadata["Name"] or "" for d in distributions()}
    types = {name.removeprefix(PLUGINS) for name in names if name.startswith(PLUGINS)}
    return bool(types - REFUSED.keys())
