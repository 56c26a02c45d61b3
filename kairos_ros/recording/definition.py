"""Message definitions as installed, whole enough to decode messages without their package."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rosbags.typesys import Stores, TypesysError, get_types_from_msg, get_typestore

from kairos_ros.core.errors import ConfigError

_SEPARATOR = "=" * 80


@dataclass(frozen=True, slots=True)
class Definition:
    """One message type."""

    name: str
    """Such as `sensor_msgs/msg/Image`."""
    text: str
    """Its .msg file, then those of all types it is made of, as rosbag2 embeds them."""
    rihs01: str
    """The type's hash (REP 2011), the same as rosidl's."""


def installed_prefixes() -> tuple[Path, ...]:
    """Where packages are installed: the ament prefixes, then this Python's own."""
    named = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    return tuple(Path(prefix) for prefix in (*filter(None, named), sys.prefix))


class Definitions:
    """Finds definitions in `share/<package>/msg/` of the prefixes, and keeps them."""

    def __init__(self, prefixes: Sequence[Path]) -> None:
        self._prefixes = prefixes
        self._store = get_typestore(Stores.EMPTY)
        self._texts: dict[str, str] = {}
        self._parts: dict[str, list[str]] = {}
        """Type -> the types of its fields."""

    def of(self, name: str) -> Definition:
        """Raises ConfigError where `name`, or a part of it, is not installed or not readable."""
        self._learn(name)
        parts = dict.fromkeys(self._inside(name))
        text = self._texts[name]
        for part in parts:
            short = part.replace("/msg/", "/")
            text += f"\n{_SEPARATOR}\nMSG: {short}\n{self._texts[part]}"
        return Definition(name, text, self._store.hash_rihs01(name))

    def _learn(self, name: str) -> None:
        if name in self._texts:
            return
        path = self._file(name)
        text = path.read_text(encoding="utf-8")
        try:
            types = get_types_from_msg(text, name)
            self._store.register(types)
        except TypesysError as error:
            raise ConfigError(f"{path} is no message definition: {error}") from error
        self._texts[name] = text.rstrip("\n") + "\n"
        self._parts[name] = [part for _, field in types[name][1] for part in _names(field)]
        for part in self._parts[name]:
            self._learn(part)

    def _inside(self, name: str) -> Iterator[str]:
        for part in self._parts[name]:
            yield part
            yield from self._inside(part)

    def _file(self, name: str) -> Path:
        package, kind, short = (*name.split("/"), "", "", "")[:3]
        for prefix in self._prefixes:
            path = prefix / "share" / package / "msg" / f"{short}.msg"
            if kind == "msg" and path.is_file():
                return path
        raise ConfigError(
            f"type {name} is not installed here, so its messages cannot be recorded; install the "
            f"package {package}, or source the workspace that holds it"
        )


def _names(field: Any) -> Iterator[str]:
    """Types named by one field as rosbags describes it: (kind, what), arrays nest it once more."""
    _, what = field
    if isinstance(what, str):
        yield what
    elif isinstance(what[0], tuple):
        yield from _names(what[0])
