"""Files that somebody names: read whole within limits, or refused in a sentence."""

import json
import stat
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.marked_yaml import MarkedYaml, MarkedYamlError

MOST_BYTES = 64_000_000


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """A text file in UTF-8. Raises ConfigError for one that cannot be read, is longer, or is no
    regular file."""
    check_regular(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(most_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(data) > most_bytes:
        raise ConfigError(f"{path} is longer than {most_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: this is no text in UTF-8: {error.reason} at byte {error.start}"
        ) from None


def check_regular(path: Path) -> None:
    """Raises ConfigError for what cannot be opened, and for what is no regular file: a device or a
    pipe may never end, or never begin."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()
            return
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # a path with a zero byte
        raise ConfigError(f"{str(path)!r}: {error}") from None
    what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
    raise ConfigError(f"{path} is {what}; name a file")


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """What a JSON file holds. Raises ConfigError as above, and for what is no JSON."""
    text = read_text(path, most_bytes)
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ConfigError(f"{path}: this is no JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{path}: this is no JSON: {error}") from None


def read_yaml(path: Path) -> Any:
    """What a YAML file holds. Raises ConfigError as above, with the place for what is no YAML."""
    try:
        return MarkedYaml(read_text(path)).data
    except MarkedYamlError as error:
        at = error.place
        raise ConfigError(f"{path}:{at.line}:{at.column}: this is no YAML: {error}") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")
