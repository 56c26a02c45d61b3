"""The rules of a robot's tasks as one line of YAML: what a robot host needs of the fleet file.

    components: {safety: {slo_ms: 300, freq_hz: 5, fallback: stop_and_replan}, ...}
        with `model: system1` at a monitor or planner that asks the policy itself
    max_task_retries: 3 ...

The names are the fleet file's (Rosa, Figure 3).
"""

import json
from collections.abc import Mapping
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import (
    ESCALATIONS,
    FALLBACKS,
    PERIODIC,
    Component,
    ComponentRules,
    Fallback,
    TaskRules,
)
from kairos_ros.document.marked_yaml import MarkedYaml, MarkedYamlError

LIMITS = ("max_task_retries", "max_consecutive_safety_replan", "max_consecutive_slo_violation")
ENDS = ("on_max_task_retries", "on_max_violation")
RATIO = "system2_to_system1_call_ratio"
MAY_ASK_SYSTEM1 = (Component.MONITOR, Component.SYSTEM2)


def rules_text(rules: TaskRules) -> str:
    """One line that `parse_rules` turns back into `rules`."""
    components = {}
    for component, one in rules.components.items():
        components[component.value] = {"slo_ms": one.slo_ns / 1e6, "fallback": one.fallback.value}
        if one.period_ns:
            components[component.value]["freq_hz"] = 1e9 / one.period_ns
        if one.asks_system1:
            components[component.value]["model"] = Component.SYSTEM1.value
    return json.dumps(
        {
            "components": components,
            **{name: getattr(rules, name) for name in LIMITS},
            **{name: getattr(rules, name).value for name in ENDS},
            RATIO: rules.system2_ratio,
        }
    )


def parse_rules(text: str) -> TaskRules:
    """Raises ConfigError that names the field, what it is, and what it may be."""
    try:
        given = MarkedYaml(text).data
    except MarkedYamlError as error:
        raise ConfigError(f"rules are not valid YAML: {' '.join(str(error).split())}") from error
    given = _mapping("rules", given, {"components", *LIMITS, *ENDS, RATIO})
    named = _mapping("components", given.get("components"), set(Component))

    def count(name: str) -> int:
        return _count(name, given.get(name))

    def end(name: str) -> Fallback:
        return _choice(name, given.get(name), ESCALATIONS)

    return TaskRules(
        components={Component(name): _component(name, one) for name, one in named.items()},
        max_task_retries=count("max_task_retries"),
        on_max_task_retries=end("on_max_task_retries"),
        max_consecutive_safety_replan=count("max_consecutive_safety_replan"),
        max_consecutive_slo_violation=count("max_consecutive_slo_violation"),
        on_max_violation=end("on_max_violation"),
        system2_ratio=_count(RATIO, given.get(RATIO, 1), least=1),
    )


def _component(name: str, given: object) -> ComponentRules:
    component = Component(name)
    fields = {"slo_ms", "fallback"} | ({"freq_hz"} if component in PERIODIC else set())
    can_ask = component in MAY_ASK_SYSTEM1
    one = _mapping(f"components.{name}", given, fields | ({"model"} if can_ask else set()))
    slo_ms = _positive(f"components.{name}.slo_ms", one.get("slo_ms"))
    hz = _positive(f"components.{name}.freq_hz", one.get("freq_hz")) if "freq_hz" in fields else 0
    return ComponentRules(
        slo_ns=round(slo_ms * 1e6),
        fallback=_choice(f"components.{name}.fallback", one.get("fallback"), FALLBACKS[component]),
        period_ns=round(1e9 / hz) if hz else 0,
        asks_system1=_asks_system1(f"components.{name}.model", one.get("model")),
    )


def _asks_system1(where: str, given: object) -> bool:
    if given is not None and given != Component.SYSTEM1:
        raise ConfigError(
            f"{where} is {given!r:.80}; give {Component.SYSTEM1.value}, or leave it out where "
            "another model answers"
        )
    return given is not None


def _mapping(where: str, given: object, fields: set[str]) -> Mapping[str, Any]:
    allowed = ", ".join(sorted(fields))
    if not isinstance(given, dict):
        raise ConfigError(f"{where} is {given!r:.80}; give a mapping of {allowed}")
    if unknown := sorted(str(key) for key in given.keys() - fields):
        raise ConfigError(f"{where} has no {unknown[0]!r:.80}; it has {allowed}")
    return given


def _positive(where: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1e9:
        raise ConfigError(f"{where} is {given!r:.80}; give a positive number")
    return float(given)


def _count(where: str, given: object, least: int = 0) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ConfigError(f"{where} is {given!r:.80}; give a whole number of at least {least}")
    return given


def _choice(where: str, given: object, allowed: tuple[Fallback, ...]) -> Fallback:
    if not isinstance(given, str) or given not in allowed:
        raise ConfigError(f"{where} is {given!r:.80}; choose from {', '.join(allowed)}")
    return Fallback(given)
