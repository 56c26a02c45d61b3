"""Where a policy's horizon calibration is kept: JSON in the policy folder, or a named file."""

import json
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.document.text_file import read_json

NAME = "horizon_calibration.json"
"""In the policy folder."""


def find_calibration(policy: str, path: str = "") -> HorizonCalibration | None:
    """The calibration at `path`; without one, that of the folder `policy`; None if it has none.

    Raises ConfigError for a file that is not there or is no calibration.
    """
    file = Path(path) if path else Path(policy) / NAME
    if not path and not file.is_file():
        return None
    return read_calibration(file)


def read_calibration(file: Path) -> HorizonCalibration:
    """Raises ConfigError for a file that is not there or is no calibration."""
    try:
        data = read_json(file)
    except ConfigError as error:
        raise ConfigError(f"horizon calibration {error}") from None
    try:
        return HorizonCalibration.from_dict(data)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def write_calibration(file: Path, calibration: HorizonCalibration) -> None:
    """One line per task, so that a diff shows which horizon changed."""
    data = calibration.to_dict()
    tasks, static = _lines(data.pop("tasks"), 2), data.pop("static", None)
    critics = data.pop("critics", ())
    text = f'{json.dumps(data)[:-1]},\n  "tasks": {tasks}'
    if static:
        horizons = _lines(static.pop("tasks"), 4)
        text += f',\n  "static": {json.dumps(static)[:-1]},\n    "tasks": {horizons}}}'
    if critics:
        text += f',\n  "critics": {_lines(critics, 2)}'
    file.write_text(text + "}\n")


def _lines(rows: list[dict[str, Any]], indent: int) -> str:
    space = "\n" + " " * indent
    return "[" + ",".join(f"{space}  {json.dumps(row)}" for row in rows) + space + "]"
