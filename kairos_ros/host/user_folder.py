"""Folders for the sockets of one user, that nobody else on this host can enter."""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from kairos_ros.core.errors import ConfigError


def user_folder(name: str) -> Path:
    """NAME-UID in XDG_RUNTIME_DIR or, without one, beside temporary files; made where it is not
    there. Raises ConfigError where that is another's."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"{name}-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"{folder} must be a folder that only you can enter; remove it")
    return folder
