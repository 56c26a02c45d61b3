"""Where the installed package keeps what is no Python: config/, launch/ and models/."""

import os
import sys
from pathlib import Path

from kairos_ros.core.errors import ConfigError

SHARE = Path(sys.prefix) / "share" / "kairos_ros"
"""Replaced by the ament share folder where the package was built with colcon, see `share`."""


def share() -> Path:
    """The folder with config/, launch/ and models/ of the installed package."""
    for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        folder = Path(prefix) / "share" / "kairos_ros"
        if prefix and (folder / "config").is_dir():
            return folder
    return SHARE


def yaml_path(name: str, kind: str, what: str) -> Path:
    """The file itself, or the one of that name that ships in config/KIND. what: an example of the
    kind, in words. Raises ConfigError where it is neither."""
    if Path(name).exists() or Path(name).name != name or name.endswith((".yaml", ".yml")):
        return Path(name)
    folder = share() / "config" / kind
    if not (folder / f"{name}.yaml").exists():
        shipped = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise ConfigError(f"{name!r} is no file and no {what}; those that ship: {shipped}")
    return folder / f"{name}.yaml"
