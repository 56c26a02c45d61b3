"""From a fleet file to what it says, or to everything that is wrong with it and where."""

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kairos_ros.document.faults import (
    Fault,
    FaultyFileError,
    fault_at,
    faults_of,
    read_document,
)
from kairos_ros.document.marked_yaml import MarkedYaml
from kairos_ros.fleet.checks import Known, Problem, problems_of
from kairos_ros.fleet.fleet_file import SECTIONS, FleetFile, TaskClass


def read_fleet(
    path: Path,
    known: Known,
    obstacles: Callable[[FleetFile, Path], Iterable[Problem]] = lambda fleet, folder: (),
) -> FleetFile:
    """obstacles: what more is wrong with it where it shall run, from the fleet and its folder.

    Raises FaultyFileError with file, line, column, field, value and choice of every fault, and
    ConfigError for a file that cannot be read at all."""
    document = read_document(path)
    if not isinstance(document.data, dict):
        text = f"a fleet file has the sections {', '.join(SECTIONS)}, and tasks"
        raise FaultyFileError(path, [fault_at(document, (), text)])
    misspelt = _misspelt(document.data)
    faults = list(_unknown_sections(document, misspelt))
    data = {misspelt.get(key, key): value for key, value in document.data.items()}
    try:
        fleet = FleetFile.model_validate(data)
    except ValidationError as error:
        written = {section: key for key, section in misspelt.items()}
        faults += faults_of(document, FleetFile, error, others=TaskClass, written=written)
        raise FaultyFileError(path, faults) from None
    if not faults:
        problems = problems_of(fleet, known, path.parent)
        problems = problems or list(obstacles(fleet, path.parent))
        faults = [fault_at(document, problem.path, problem.text) for problem in problems]
    if faults:
        raise FaultyFileError(path, faults)
    return fleet


def _misspelt(data: dict[str, Any]) -> dict[str, str]:
    """Keys that are no task of a robot, but nearly the name of a section that is not there."""
    groups = data.get("robot_fleet")
    groups = groups if isinstance(groups, list) else []
    tasks = [group.get("task") for group in groups if isinstance(group, dict)]
    found: dict[str, str] = {}
    for key in data:
        if key not in SECTIONS and key not in tasks:
            absent = set(SECTIONS) - data.keys() - set(found.values())
            for section in get_close_matches(key, absent, n=1, cutoff=0.75):
                found[key] = section
    return found


def _unknown_sections(document: MarkedYaml, misspelt: dict[str, str]) -> Iterator[Fault]:
    for key, section in misspelt.items():
        text = f"there is no section {key!r} (did you mean {section!r}?)"
        yield Fault(document.key_place((key,)), key, text)
