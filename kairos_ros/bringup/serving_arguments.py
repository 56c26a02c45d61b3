"""Launch arguments of a serving node, and of the engine that it runs on its host."""

import difflib
from collections.abc import Mapping
from typing import Any

from kairos_ros.bringup.plan import flag, whole_number
from kairos_ros.core.errors import ConfigError

ENGINE_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "memory_budget_mib": ("0", "What policies of this host may take together; 0: all stay loaded"),
    "rtc": ("false", "true: guide every chunk to begin with what its robot executes meanwhile"),
    "compile": ("false", "true: torch.compile the sampler; the first start takes minutes longer"),
    "language_mib": ("0", "MiB for questions that the policy answers; 0: it answers none"),
    "device": ("auto", "auto, cpu, cuda or cuda:N"),
    "dtype": ("auto", "Precision: auto, float32 or bfloat16"),
    "max_batch": ("16", "Largest batch"),
    "profile": ("", "JSON of kairos profile; empty: latencies are measured while warming up"),
    "tokenizer": ("", "Folder that replaces the tokenizer which the policy names"),
}
"""Name -> (default, description)."""


def engine_parameters(values: dict[str, str]) -> dict[str, Any]:
    """Takes the engine's arguments out of `values`, as parameters of the serving node.

    Raises ConfigError for what is no number or flag.
    """
    found: dict[str, Any] = {
        name: values.pop(name) for name in ENGINE_ARGUMENTS if values.get(name)
    }
    for read, names in (
        (flag, ("rtc", "compile")),
        (whole_number, ("memory_budget_mib", "max_batch", "language_mib")),
    ):
        found |= {name: read(name, found[name]) for name in names if name in found}
    return found


SERVING_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "policy": ("", "LeRobot policy folder or hub id; empty: the one that ships with the package"),
    "policies": ("", "Instead, several: NAME=POLICY of each, separated by ; and the default first"),
    "policy_options": ("", "For one of policies alone: NAME.OPTION=VALUE, separated by ;"),
    "scheduling": ("wait_ratio", "fifo, least_service, wait_ratio, oldest_task or admit"),
    "horizon": ("", "Default horizon policy, such as confidence:t=0.4; empty: as in serving.yaml"),
    **ENGINE_ARGUMENTS,
    "robots": ("", "Robots to serve, such as left_*, separated by commas; empty: every robot"),
    "standby_after_s": ("", "1 to 3.5: stand by, and serve once another server is so long silent"),
}


def serving_parameters(values: Mapping[str, str]) -> dict[str, Any]:
    """`SERVING_ARGUMENTS`, as far as they are given, as parameters of the serving node.

    Raises ConfigError for a name that is none of them, and for what is no number or flag.
    """
    for name in values.keys() - SERVING_ARGUMENTS.keys():
        near = difflib.get_close_matches(name, SERVING_ARGUMENTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(SERVING_ARGUMENTS)}"
        raise ConfigError(f"the serving node has no argument {name!r}; {hint}")
    given = {name: value for name, value in values.items() if value}
    found: dict[str, Any] = engine_parameters(given) | given
    if "standby_after_s" in found:
        found["standby_after_s"] = _seconds("standby_after_s", found["standby_after_s"])
    for name, separator in (("robots", ","), ("policies", ";"), ("policy_options", ";")):
        if name in found:
            listed = [text.strip() for text in found[name].split(separator)]
            found[name] = [text for text in listed if text]
    return found


def _seconds(name: str, text: str) -> float:
    """Raises ConfigError for what is no number; which ones are allowed is the node's to say."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"argument {name} is {text!r}; say seconds, such as 1.5") from None
