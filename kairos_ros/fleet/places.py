"""Where the models of a fleet file are: folders in it count from the file, and `~` is home."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from kairos_ros.host.share import share

EMBEDDED = "embedded:"
IN_PROCESS = "transformers:"
SYSTEM1 = "system1"
"""As the model of a monitor or planner: the action model of its task is asked itself."""
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.]+")
LONGEST_NAME = 50


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


def policy_names(models: Iterable[str]) -> dict[str, str]:
    """System 1 model -> the name that it has at the serving node: the last part of its own, in
    letters that a policy's name may have, and with a number where two would have the same."""
    names: dict[str, str] = {}
    for model in dict.fromkeys(models):
        last = model.removeprefix(EMBEDDED).rstrip("/").rpartition("/")[2]
        name = NOT_IN_NAMES.sub("-", last)[:LONGEST_NAME].strip("-._") or "policy"
        same = sum(known.partition("--")[0] == name for known in names.values())
        names[model] = f"{name}--{same + 1}" if same else name
    return names


def options_of[T](options: Mapping[str, T], fleet_folder: Path) -> dict[str, T | str]:
    """Options of a System 1 model as its engine wants them."""
    folder = tokenizer_of(options, fleet_folder)
    return {**options, **({"tokenizer": str(folder)} if folder else {})}


def tokenizer_of(options: Mapping[str, object], fleet_folder: Path) -> Path | None:
    """The folder that option `tokenizer` names; None where it is not given, or is a hub id."""
    return folder_of(str(options.get("tokenizer", "")), fleet_folder)


def policy_of(model: str, fleet_folder: Path) -> str:
    """A System 1 model as parameter `policy` wants it."""
    if model.startswith(EMBEDDED):
        return str(share() / "models" / model.removeprefix(EMBEDDED))
    return model_of(model, fleet_folder)
