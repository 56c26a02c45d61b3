"""Parameters of the serving node, and what they configure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.core.horizons.policies import (
    AUTO,
    DEFAULT_SURPRISED_HORIZON,
    UNCALIBRATED,
)
from kairos_ros.core.language.decoding import CHOICES, DEFAULT_CHOICE
from kairos_ros.core.placement.served_plan import PlannedEngine, read_served_plan
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.core.wire_check import ROBOTS
from kairos_ros.engine.client.planned_link import dialling
from kairos_ros.engine.client.remote_spec import NamedRemote, RemoteSpec, parse_remote
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.policies.calibration_file import find_calibration
from kairos_ros.engine.registry import NAME, registry_of, with_own_options
from kairos_ros.nodes.parameters import STRINGS, ParameterSpec
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.endpoint import check_endpoint
from kairos_ros.transport.key_folder import KeyFolder, default_folder

EDGE = "edge"
"""Name of the engine that the serving node starts itself; of several, `edge/POLICY`. They have one
device."""
NOWHERE = "/nonexistent"
"""Policy folder where there is none: the calibration beside this process is not meant."""

SERVING_PARAMETERS = (
    ParameterSpec(
        "policy", "", "LeRobot policy folder, hub id, or emulated:...; empty: no engine here"
    ),
    ParameterSpec(
        "policies",
        STRINGS,
        "In the place of policy: NAME=POLICY of each one, the default first; NAME alone: only "
        "engines elsewhere serve it",
    ),
    ParameterSpec(
        "policy_options",
        STRINGS,
        "NAME.OPTION=VALUE: for one of policies alone; OPTION is dtype, threads, max_batch, "
        "tokenizer, allowed_steps, rtc, compile, language_mib or language_decoding",
    ),
    ParameterSpec(
        "plan",
        "",
        "In the place of policies: the engines, routes and rates of a fleet plan (JSON), as "
        "`kairos fleet up --planned` and `kairos fleet apply` set it",
        live=True,
    ),
    ParameterSpec(
        "staged_plan",
        "",
        "A plan whose engines are loaded beside those of plan, and serve nobody before plan is set "
        "to it; empty: none",
        live=True,
    ),
    ParameterSpec(
        "policy_swaps",
        STRINGS,
        "OLD=NEW: new tasks that ask for OLD get NEW, running ones keep theirs",
        live=True,
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
        live=True,
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
    ParameterSpec(
        "memory_budget_mib",
        0,
        "What the policies of this host may take together: they are loaded when they are needed, "
        "and ended when the next one does not fit; 0: all are loaded at the start, and stay",
        0,
        10_000_000,
    ),
    ParameterSpec("profile", "", "JSON of kairos profile; empty: measured while warming up"),
    ParameterSpec("tokenizer", "", "Replaces the tokenizer that the saved policy names"),
    ParameterSpec("allowed_steps", "", "Further processor steps the policy may load: A,B"),
    ParameterSpec("rtc", False, "Guide chunks to begin with what their robots have committed"),
    ParameterSpec("compile", False, "Compile the sampler: loading takes minutes longer"),
    ParameterSpec(
        "language_mib",
        0,
        "Memory for questions that the policy answers in words, MiB; 0: it answers none",
        0,
        10_000_000,
    ),
    ParameterSpec(
        "language_decoding",
        DEFAULT_CHOICE,
        "Which of these answers a step decodes one token further: all, or those that fit into what "
        "the most urgent one can wait",
        choices=tuple(CHOICES),
    ),
    ParameterSpec("scheduling", "wait_ratio", "Scheduling policy with its options", live=True),
    ParameterSpec(
        "horizon",
        AUTO,
        "Horizon policy of requests that name none; auto: calibrated, or where the policy has no "
        f"calibration {UNCALIBRATED}",
        live=True,
    ),
    ParameterSpec(
        "horizon_calibration", "", "JSON of kairos calibrate; empty: the policy folder's, if any"
    ),
    ParameterSpec(
        "rate_control",
        False,
        "Tell robots how often they may ask when all together ask for more than the engines do",
        live=True,
    ),
    ParameterSpec(
        "load_horizon",
        False,
        "Execute more of each chunk when engines are short, for the most successful tasks per hour "
        "by the calibration's counts",
        live=True,
    ),
    ParameterSpec(
        "surprised_horizon",
        DEFAULT_SURPRISED_HORIZON,
        "Most actions of a chunk that a robot asked for early, with its parameter surprise; 0: no "
        "limit",
        0,
        10_000,
        live=True,
    ),
    ParameterSpec(
        "stale_after_s", 0.05, "Age at which an observation is refetched", 0.0, 60.0, live=True
    ),
    ParameterSpec(
        "default_deadline_s", 10.0, "For requests that name none", 0.01, 3600.0, live=True
    ),
    ParameterSpec("max_queue", 1000, "More pending requests are refused", 1, 1_000_000, live=True),
    ParameterSpec("max_message_mb", 8.0, "Larger observations are refused", 0.001, 256.0),
    ParameterSpec("max_robots", ROBOTS, "More at a time are ignored", 1, 10_000),
    ParameterSpec(
        "robots", STRINGS, "Names of the robots to serve, such as 'left_*'; empty: every robot"
    ),
    ParameterSpec(
        "standby_after_s",
        0.0,
        "Not 0: this node stands by, and takes over the robots of another serving node that was "
        "silent for so long (1 to 3.5)",
        0.0,
        3.5,
    ),
    ParameterSpec("fleet_state_hz", 5.0, "Rate of /kairos/fleet_state", 0.1, 50.0, live=True),
    ParameterSpec("warn_queued_s", 1.0, "Longer in the queue is a warning", 0.0, 3600.0, live=True),
    ParameterSpec("warn_engine_load", 0.95, "More load is a warning", 0.0, 1.0, live=True),
)


def policy_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Of the policies that are served, the default first; "" of the only one of parameter
    `policy`."""
    if values["plan"]:
        return tuple(read_served_plan(values["plan"]).policies)
    return tuple(text.partition("=")[0] for text in values["policies"]) or ("",)


def engine_options(values: Mapping[str, Any]) -> dict[str, EngineOptions]:
    """How each policy that this host has an engine for shall run, by name. Raises ConfigError."""
    options = EngineOptions(**{field.name: values[field.name] for field in fields(EngineOptions)})
    if values["plan"]:
        return _planned(values, options)
    if not values["policies"]:
        if values["policy_options"]:
            raise ConfigError(
                f"parameter policy_options is {', '.join(values['policy_options'])}, and is for "
                "those of parameter policies"
            )
        return {"": options} if options.policy else {}
    for single in ("policy", "profile", "horizon_calibration"):
        if values[single]:
            raise ConfigError(
                f"parameter {single} is {values[single]!r} and parameter policies names several; "
                f"leave out one: {single} is for one policy"
            )
    asked = policy_names(values)
    for name in asked:
        if asked.count(name) > 1 or not NAME.fullmatch(name):
            raise ConfigError(
                f"parameter policies: {name!r} cannot be the name of a policy, or is that of two; "
                "use 1 to 64 letters, digits, '.', '-' and '_', first a letter or digit"
            )
    registry = registry_of([text for text in values["policies"] if "=" in text], options)
    return with_own_options(registry, values["policy_options"])


def _planned(values: Mapping[str, Any], defaults: EngineOptions) -> dict[str, EngineOptions]:
    """Of the policies of a plan. Raises ConfigError."""
    for other in ("policy", "policies", "policy_options", "profile", "memory_budget_mib"):
        if values[other]:
            raise ConfigError(
                f"parameter {other} is {values[other]!r}, and parameter plan says what is served; "
                "leave out one"
            )
    policies = read_served_plan(values["plan"]).policies
    registry = registry_of([f"{name}={one['policy']}" for name, one in policies.items()], defaults)
    own = [
        f"{name}.{option}={json.dumps(value) if isinstance(value, bool) else value}"
        for name, one in policies.items()
        for option, value in one.items()
        if option != "policy"
    ]
    return with_own_options(registry, own)


def policy_swaps(texts: Sequence[str]) -> dict[str, str]:
    """Policy -> the one that new tasks get in its place. Raises ConfigError."""
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"parameter policy_swaps: {text!r} must read OLD=NEW")
    swaps = dict(text.split("=", 1) for text in texts)
    if len(swaps) < len(texts):
        raise ConfigError("parameter policy_swaps: each policy can be swapped for one other only")
    return swaps


def remote_policy(values: Mapping[str, Any], remote: NamedRemote) -> str:
    """The name at this server of what an engine elsewhere serves. Raises ConfigError."""
    served = policy_names(values)
    if served == ("",) and not remote.device:
        return ""
    if remote.spec.policy not in served:
        known = ", ".join(filter(None, served)) or "none, as it is empty"
        raise ConfigError(
            f"engine {remote.name!r} serves policy {remote.spec.policy or '(none named)'}; add "
            f",policy=NAME or ,policy=A|B with names of parameter policies: {known}"
        )
    return remote.spec.policy


def planned_remote(values: Mapping[str, Any], engine: PlannedEngine) -> RemoteSpec:
    """How an engine that a plan has on another host is reached: with keys, but for loopback. Raises
    ConfigError."""
    security = dialling(engine.endpoint, engine.host, values["keys"])
    check_endpoint(engine.endpoint, security, dial=True)
    return RemoteSpec(engine.endpoint, engine.policy, security)


def remote_engines(values: Mapping[str, Any]) -> list[NamedRemote]:
    """The engines elsewhere. Raises ConfigError."""
    keys = KeyFolder(Path(values["keys"]) if values["keys"] else default_folder())
    listed = [parse_remote(text, keys) for text in values["engines"]]
    names = [remote.name for remote in listed]
    for name in names:
        if names.count(name) > 1 or name == EDGE:
            raise ConfigError(f"parameter engines: the name {name!r} is taken; choose another")
    remotes = [one for remote in listed for one in remote.per_policy()]
    for remote in remotes:
        remote_policy(values, remote)
    if not remotes and not engine_options(values):
        raise ConfigError(
            "parameter policy is empty, and so is policies; give a LeRobot policy folder or hub "
            "id, or name engines elsewhere in parameter engines"
        )
    return remotes


def _calibrations(values: Mapping[str, Any]) -> dict[str, HorizonCalibration]:
    found = {
        name: find_calibration(options.policy) for name, options in engine_options(values).items()
    }
    return {name: calibration for name, calibration in found.items() if calibration}


def serving_options(values: Mapping[str, Any]) -> ServingOptions:
    """How requests are served. Raises ConfigError for a policy that is named wrongly."""
    planned = read_served_plan(values["plan"]).engines if values["plan"] else ()
    return ServingOptions(
        scheduling=parse_scheduling(values["scheduling"]),
        horizon_policy=values["horizon"],
        stale_after_ns=round(values["stale_after_s"] * 1e9),
        default_deadline_ns=round(values["default_deadline_s"] * 1e9),
        max_queue=values["max_queue"],
        max_bytes=round(values["max_message_mb"] * 1e6),
        batch_cap=max([values["max_batch"], *(engine.batch for engine in planned)]),
        comparison=values["placement"],
        hedge_budget=values["hedge_budget"],
        rate_control=values["rate_control"],
        load_horizon=values["load_horizon"],
        surprised_horizon=values["surprised_horizon"],
        memory_budget_mib=values["memory_budget_mib"],
        calibration=find_calibration(values["policy"] or NOWHERE, values["horizon_calibration"]),
        policies=policy_names(values),
        calibrations=_calibrations(values) if values["policies"] or values["plan"] else {},
    )
