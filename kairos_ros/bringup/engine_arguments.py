"""Launch arguments of the engine that a serving node runs on its host."""

from collections.abc import Mapping
from typing import Any

from kairos_ros.bringup.plan import flag, whole_number

ENGINE_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "memory_budget_mib": ("0", "What policies of this host may take together; 0: all stay loaded"),
    "rtc": ("false", "true: guide every chunk to begin with what its robot executes meanwhile"),
    "compile": ("false", "true: torch.compile the sampler; the first start takes minutes longer"),
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
        (whole_number, ("memory_budget_mib", "max_batch")),
    ):
        found |= {name: read(name, found[name]) for name in names if name in found}
    return found
