"""Policies named in one line of text: `name`, `name:value` or `name:option=value,option=value`.

The same grammar serves horizon and scheduling policies, in launch arguments, in requests and on
the command line; engines elsewhere and emulated ones have their options in it, too. A policy is any
callable with annotated parameters (usually a frozen dataclass); installed packages add their own
through an entry point group.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from kairos_ros.core.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def split_options(text: str) -> list[tuple[str, str, str | None]]:
    """Splits `a=1,b` into its parts: [("a=1", "a", "1"), ("b", "b", None)].

    Returns (part as written, name, value) of each; value is None for a part without `=`.
    """
    parts = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        parts.append((part, name, value if equals else None))
    return parts


def split_spec(text: str) -> tuple[str, dict[str, str]]:
    """Splits `name:a=1,b=2` into the name and its options, all still text.

    A value without a name is returned under the key "" and means the policy's first option.
    Raises ConfigError for an empty name, an empty option, or an option given twice.
    """
    name, _, rest = text.strip().partition(":")
    if not name:
        raise ConfigError(f"{text!r} names no policy; write 'name' or 'name:option=value'")
    options: dict[str, str] = {}
    for _, key, value in split_options(rest) if rest else []:
        if value is None:
            key, value = "", key
        if not value:
            raise ConfigError(f"{text!r} has an empty option; write 'option=value'")
        if key in options:
            raise ConfigError(f"{text!r} gives {key or 'a value without a name'} twice")
        options[key] = value
    return name, options


def build_policy(text: str, builtin: Mapping[str, Callable[..., Any]], group: str) -> Any:
    """Builds the policy that `text` names, from `builtin` or from entry point group `group`.

    group: ends with the kind of policy, such as `kairos_ros.horizon`.

    Raises ConfigError for an unknown policy, an unknown option, or a value of the wrong type.
    """
    name, options = split_spec(text)
    factory = builtin.get(name) or _plugin(name, group, builtin)
    try:
        parameters = inspect.signature(factory, eval_str=True).parameters
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"policy {name!r} has no readable signature: {error}") from error
    arguments: dict[str, Any] = {}
    for key, value in options.items():
        option = key or next(iter(parameters), "")
        if option not in parameters:
            known = ", ".join(parameters) or "none"
            raise ConfigError(f"{name!r} has no option {key or value!r}; its options are: {known}")
        if option in arguments:
            raise ConfigError(f"{text!r} gives option {option!r} of {name!r} twice")
        arguments[option] = _convert(name, option, value, parameters[option].annotation)
    missing = [
        p.name
        for p in parameters.values()
        if p.default is inspect.Parameter.empty and p.name not in arguments
    ]
    if missing:
        raise ConfigError(f"{name!r} needs {', '.join(missing)}; write '{name}:{missing[0]}=…'")
    try:
        return factory(**arguments)
    except ConfigError:
        raise
    except Exception as error:  # of a plug-in
        raise ConfigError(f"policy {text!r}: {type(error).__name__}: {error}") from error


def _plugin(name: str, group: str, builtin: Mapping[str, Any]) -> Callable[..., Any]:
    plugins = installed_plugins(group)
    if name not in plugins:
        known = ", ".join(sorted({*builtin, *plugins}))
        kind = group.rpartition(".")[2]
        raise ConfigError(f"unknown {kind} policy {name!r}; known here: {known}")
    try:
        factory: Callable[..., Any] = plugins[name].load()
    except Exception as error:
        raise ConfigError(
            f"plugin {plugins[name].value!r} for {name!r} fails to load: {error}"
        ) from error
    return factory


@cache
def installed_plugins(group: str) -> "Mapping[str, EntryPoint]":
    """Entry points of a group by name, looked up once per process.

    The look-up reads every installed package's metadata, about 0.1 s: too long to let each
    misspelt name in a robot's request cause it.
    """
    from importlib.metadata import entry_points  # most programs never need it

    return {entry.name: entry for entry in entry_points(group=group)}


def _convert(name: str, option: str, value: str, kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        if value.lower() == "none" and type(None) in get_args(kind):
            return None
        kind = next(member for member in get_args(kind) if member is not type(None))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            allowed = " or ".join(map(str, get_args(kind)))
            raise ConfigError(f"{name}: {option} is {allowed}, not {value!r}")
        return value
    try:
        if kind is bool:
            return BOOLEANS[value.lower()]
        return kind(value) if kind in (int, float) else value
    except (KeyError, ValueError):
        raise ConfigError(
            f"{name}: {option} must be of type {kind.__name__}, not {value!r}"
        ) from None
