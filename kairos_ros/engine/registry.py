"""Which policies a worker serves, by name: a client names one of them and never a path."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.text_file import read_yaml
from kairos_ros.engine.interface import EngineOptions

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
OWN = {
    field.name: type(field.default)
    for field in fields(EngineOptions)
    if field.name not in ("policy", "device")
}
"""Option that a policy may have for itself -> its type."""


def registry_of(policies: Sequence[str], defaults: EngineOptions) -> dict[str, EngineOptions]:
    """From `NAME=POLICY` texts. Raises ConfigError."""
    registry: dict[str, EngineOptions] = {}
    for text in policies:
        name, equals, policy = text.partition("=")
        if not equals or not policy or ":" in name:
            raise ConfigError(
                f"policy {text!r}: write NAME=POLICY, where NAME is what clients ask for and "
                "POLICY a LeRobot policy folder, a hub id or emulated:..."
            )
        if _checked(name) in registry:
            raise ConfigError(f"policy name {name!r} is used twice")
        registry[name] = replace(defaults, policy=policy)
    return registry


def with_own_options(
    registry: dict[str, EngineOptions], texts: Sequence[str]
) -> dict[str, EngineOptions]:
    """`NAME.OPTION=VALUE` texts say what holds for one policy alone. Raises ConfigError.

    All have one device, since one schedule is made for it.
    """
    found = dict(registry)
    for text in texts:
        named, equals, value = text.partition("=")
        name, _, option = named.rpartition(".")
        if not equals or option not in OWN:
            raise ConfigError(
                f"policy option {text!r}: write NAME.OPTION=VALUE, where OPTION is one of "
                f"{', '.join(OWN)}"
            )
        if name not in found:
            known = ", ".join(found) or "none"
            raise ConfigError(
                f"policy option {text!r}: {name!r} is no policy of this host: {known}"
            )
        found[name] = replace(found[name], **{option: _read(text, value, OWN[option])})
    return found


def _read(text: str, value: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[value] if kind is bool else kind(value)
    except (KeyError, ValueError):
        wanted = "true or false" if kind is bool else "a whole number"
        raise ConfigError(f"policy option {text!r}: expected {wanted}") from None


def read_registry(path: Path, defaults: EngineOptions) -> dict[str, EngineOptions]:
    """From a YAML file: `NAME: POLICY`, or `NAME: {policy: POLICY, device: cuda:1, ...}` with the
    fields of `EngineOptions`. Folders are relative to the file. Raises ConfigError."""
    try:
        data = read_yaml(path)
    except ConfigError as error:
        raise ConfigError(f"registry {error}") from error
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"registry {path}: write one line `NAME: POLICY` for each policy")
    return {
        _checked(str(name)): _options(f"registry {path}, policy {name}", path, entry, defaults)
        for name, entry in data.items()
    }


def _options(where: str, path: Path, entry: Any, defaults: EngineOptions) -> EngineOptions:
    given = {"policy": entry} if isinstance(entry, str) else entry
    kinds = {field.name: type(getattr(defaults, field.name)) for field in fields(EngineOptions)}
    if not isinstance(given, dict) or not given.get("policy"):
        raise ConfigError(f"{where}: give a policy, or a map with `policy` in it")
    for key, value in given.items():
        if key not in kinds:
            raise ConfigError(f"{where}: unknown option {key!r}; it has {', '.join(kinds)}")
        if type(value) is not kinds[key]:
            raise ConfigError(f"{where}: {key} is {value!r}, expected {kinds[key].__name__}")
    beside = path.parent / given["policy"]
    policy = str(beside) if beside.is_dir() else given["policy"]
    return replace(defaults, **(given | {"policy": policy}))


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"policy name {name!r:.80}: use 1 to 64 letters, digits, '.', '-' and '_', first a "
            "letter or digit"
        )
    return name
