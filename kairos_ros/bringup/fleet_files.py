"""Fleet files of this host: read, and judged by what is installed here."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_ros.bringup.plan import calibrated
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.spec import installed_plugins
from kairos_ros.host.share import share, yaml_path
from kairos_ros.robot.adapters import registry as adapters

if TYPE_CHECKING:
    from kairos_ros.fleet.checks import Known
    from kairos_ros.fleet.fleet_file import FleetFile
    from kairos_ros.fleet.load_profiles import FoundProfile


def read(path: Path) -> "FleetFile":
    """A fleet file, checked against what is installed here. Raises ConfigError."""
    from kairos_ros.fleet.reading import read_fleet

    return read_fleet(path, known_here())


def runnable(path: Path, host: str = "") -> "FleetFile":
    """A fleet file of which nothing keeps the nodes from running on this host. Raises ConfigError.
    host: its name where it runs a part of them only.

    The judgement of `kairos fleet check` and of whatever runs a whole fleet file.
    """
    from kairos_ros.fleet.host import obstacles
    from kairos_ros.fleet.reading import read_fleet

    return read_fleet(path, known_here(), partial(obstacles, host=host))


def known_here() -> "Known":
    """What this installation can do."""
    from kairos_ros.fleet.checks import Known

    return Known(
        adapters={*adapters.BUILTIN, *adapters.NEED_A_NODE, *installed_plugins(adapters.GROUP)},
        calibrated=calibrated,
    )


def load_profiles(paths: Iterable[Path], folders: Iterable[Path]) -> "list[FoundProfile]":
    """Load profiles for fleet files: of `folders`, then of those beside the files, then the shipped
    ones. Raises ConfigError."""
    from kairos_ros.fleet.load_profiles import read_profiles

    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"--profiles {folder}: there is no such folder")
    beside = [path.parent / "profiles" for path in paths]
    return read_profiles(dict.fromkeys([*folders, *beside, share() / "config" / "profiles"]))


def fleet_path(name: str) -> Path:
    """The file itself, or the shipped one of that name. Raises ConfigError where it is neither."""
    return yaml_path(name, "fleets", "fleet")
