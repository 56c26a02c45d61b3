"""Where the models of a fleet file are: folders in it count from the file, and `~` is home."""

import os
from pathlib import Path

from kairos_ros.share import share

EMBEDDED = "embedded:"
IN_PROCESS = "transformers:"


def folder_of(model: str, fleet_folder: Path) -> Path | None:
    """The folder that a model is, or that its scheme runs; None where it is something else."""
    named = model.removeprefix(IN_PROCESS)
    if named == model and not model.startswith(("/", "./", "../", "~")):
        return None
    return fleet_folder.absolute() / os.path.expanduser(named)


def model_of(model: str, fleet_folder: Path) -> str:
    """As nodes want it, wherever they run."""
    folder = folder_of(model, fleet_folder)
    if folder is None:
        return model
    return f"{IN_PROCESS if model.startswith(IN_PROCESS) else ''}{folder}"


def policy_of(model: str, fleet_folder: Path) -> str:
    """A System 1 model as parameter `policy` wants it."""
    if model.startswith(EMBEDDED):
        return str(share() / "models" / model.removeprefix(EMBEDDED))
    return model_of(model, fleet_folder)
