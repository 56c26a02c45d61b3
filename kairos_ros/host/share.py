"""Where the installed package keeps what is no Python: config/, launch/ and models/."""

import os
import sys
from pathlib import Path

SHARE = Path(sys.prefix) / "share" / "kairos_ros"
"""Replaced by the ament share folder where the package was built with colcon, see `share`."""


def share() -> Path:
    """The folder with config/, launch/ and models/ of the installed package."""
    for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        folder = Path(prefix) / "share" / "kairos_ros"
        if prefix and (folder / "config").is_dir():
            return folder
    return SHARE
