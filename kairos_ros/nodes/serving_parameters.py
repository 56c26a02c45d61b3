"""Parameters of the serving node, and what they configure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.scheduling import parse_scheduling
from kairos_ros.engine.remote_spec import NamedRemote, parse_remote
from kairos_ros.engine.seam import EngineOptions
from kairos_ros.nodes.parameters import STRINGS, ParameterSpec
from kairos_ros.serving.calibration_file import find_calibration
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.key_folder import KeyFolder, default_folder

EDGE = "edge"
"""Name of the engine that the serving node starts itself."""
NOWHERE = "/nonexistent"
"""Policy folder where there is none: the calibration beside this process is not meant."""

SERVING_PARAMETERS = (
    ParameterSpec(
        "policy", "", "LeRobot policy folder, hub id, or emulated:...; empty: no engine here"
    ),
    ParameterSpec(
        "engines", STRINGS, "Engines elsewhere, NAME=tcp://HOST:PORT,... (docs/cloud.md)"
    ),
    ParameterSpec("keys", "", "Folder of keys; empty: KAIROS_KEYS, else ~/.config/kairos/keys"),
    ParameterSpec(
        "placement",
        "completion",
        "How edge and cloud are compared",
        choices=("completion", "printed"),
    ),
    ParameterSpec(
        "hedge_budget",
        0.0,
        "Share of requests that may be sent to edge and cloud where the answer may be late",
        0.0,
        1.0,
    ),
    ParameterSpec("device", "auto", "auto, cpu, cuda or cuda:N"),
    ParameterSpec("dtype", "auto", "Precision", choices=("auto", "float32", "bfloat16")),
    ParameterSpec("threads", 1, "CPU threads of one forward pass", 1, 256),
    ParameterSpec("max_batch", 16, "Largest batch, besides the profile's saturation", 1, 256),
    ParameterSpec("profile", "", "JSON of kairos profile; empty: measured while warming up"),
    ParameterSpec("tokenizer", "", "Replaces the tokenizer that the saved policy names"),
    ParameterSpec("scheduling", "wait_ratio", "Scheduling policy with its options"),
    ParameterSpec("horizon", "confidence", "Horizon policy of requests that name none"),
    ParameterSpec(
        "horizon_calibration", "", "JSON of kairos calibrate; empty: the policy folder's, if any"
    ),
    ParameterSpec("stale_after_s", 0.05, "Age at which an observation is refetched", 0.0, 60.0),
    ParameterSpec("default_deadline_s", 10.0, "For requests that name none", 0.01, 3600.0),
    ParameterSpec("max_queue", 1000, "More pending requests are refused", 1, 1_000_000),
    ParameterSpec("max_message_mb", 8.0, "Larger observations are refused", 0.001, 256.0),
    ParameterSpec("autostart", True, "Configure and activate at start"),
    ParameterSpec("fleet_state_hz", 5.0, "Rate of /kairos/fleet_state", 0.1, 50.0),
    ParameterSpec("warn_queued_s", 1.0, "Longer in the queue is a warning", 0.0, 3600.0),
    ParameterSpec("warn_engine_load", 0.95, "More load is a warning", 0.0, 1.0),
)


def engine_options(values: Mapping[str, Any]) -> EngineOptions:
    """How the engine's policy shall run."""
    names = ("policy", "device", "dtype", "threads", "max_batch", "tokenizer")
    return EngineOptions(**{name: values[name] for name in names})


def remote_engines(values: Mapping[str, Any]) -> list[NamedRemote]:
    """The engines elsewhere. Raises ConfigError."""
    keys = KeyFolder(Path(values["keys"]) if values["keys"] else default_folder())
    remotes = [parse_remote(text, keys) for text in values["engines"]]
    names = [remote.name for remote in remotes]
    for name in names:
        if names.count(name) > 1 or name == EDGE:
            raise ConfigError(f"parameter engines: the name {name!r} is taken; choose another")
    if not remotes and not values["policy"]:
        raise ConfigError(
            "parameter policy is empty; give a LeRobot policy folder or hub id, or name engines "
            "elsewhere in parameter engines"
        )
    return remotes


def serving_options(values: Mapping[str, Any]) -> ServingOptions:
    """How requests are served. Raises ConfigError for a policy that is named wrongly."""
    return ServingOptions(
        scheduling=parse_scheduling(values["scheduling"]),
        horizon=values["horizon"],
        stale_after_ns=round(values["stale_after_s"] * 1e9),
        default_deadline_ns=round(values["default_deadline_s"] * 1e9),
        max_queue=values["max_queue"],
        max_bytes=round(values["max_message_mb"] * 1e6),
        batch_cap=values["max_batch"],
        comparison=values["placement"],
        hedge_budget=values["hedge_budget"],
        calibration=find_calibration(values["policy"] or NOWHERE, values["horizon_calibration"]),
    )
