"""Where a policy's horizon calibration is kept: JSON in the policy folder, or a named file."""

import json
from pathlib import Path

from kairos_ros.core.calibration import HorizonCalibration
from kairos_ros.core.errors import ConfigError

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
        data = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"horizon calibration {file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"horizon calibration {file} is no JSON: {error}") from None
    try:
        return HorizonCalibration.from_dict(data)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def write_calibration(file: Path, calibration: HorizonCalibration) -> None:
    """One line per task, so that a diff shows which plan changed."""
    data = calibration.to_dict()
    tasks = ",\n    ".join(json.dumps(row) for row in data.pop("tasks"))
    head, how = json.dumps(data)[:-1], f'"tasks": [\n    {tasks}\n  ]'
    file.write_text(f"{head},\n  {how}}}\n")
