"""From a fleet file to what it says, or to everything that is wrong with it and where."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from kairos_ros.core.errors import ConfigError
from kairos_ros.fleet.checks import Known, did_you_mean, problems_of
from kairos_ros.fleet.fleet_file import SECTIONS, FleetFile, TaskClass
from kairos_ros.fleet.marked_yaml import MarkedYaml, MarkedYamlError, Place
from kairos_ros.fleet.marked_yaml import Path as FieldPath

LONGEST_GIVEN = 60
"""Characters of a wrong value that are shown."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    place: Place
    field: str
    """Such as `pick.components.safety.slo_ms`; empty for the whole file."""
    text: str
    """What was given, and what is allowed."""


class FleetFileError(ConfigError):
    """Everything that is wrong with a fleet file, in the order of its lines."""

    def __init__(self, path: Path, faults: Sequence[Fault]) -> None:
        self.faults = sorted(faults, key=lambda fault: (fault.place.line, fault.place.column))
        super().__init__("\n".join(_line(path, fault) for fault in self.faults))


def read_fleet(path: Path, known: Known) -> FleetFile:
    """Raises FleetFileError with file, line, column, field, value and choice of every fault, and
    ConfigError for a file that cannot be read at all."""
    try:
        document = MarkedYaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is no text in UTF-8: {error.reason}") from None
    except MarkedYamlError as error:
        raise FleetFileError(path, [Fault(error.place, "", f"this is no YAML: {error}")]) from None
    if not isinstance(document.data, dict):
        text = f"a fleet file has the sections {', '.join(SECTIONS)}, and tasks"
        raise FleetFileError(path, [Fault(document.place(()), "", text)])
    misspelt = _misspelt(document.data)
    faults = list(_unknown_sections(document, misspelt))
    data = {misspelt.get(key, key): value for key, value in document.data.items()}
    try:
        fleet = FleetFile.model_validate(data)
    except ValidationError as error:
        written = {section: key for key, section in misspelt.items()}
        for problem in error.errors(include_url=False):
            top, *rest = problem["loc"]
            faults.append(_fault(document, (written.get(top, top), *rest), problem))
        raise FleetFileError(path, faults) from None
    if not faults:
        problems = problems_of(fleet, known, path.parent)
        faults = [Fault(document.place(p.path), _dotted(p.path), p.text) for p in problems]
    if faults:
        raise FleetFileError(path, faults)
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


def _fault(document: MarkedYaml, path: FieldPath, problem: Any) -> Fault:
    """One of pydantic's errors in our words."""
    section, field = _declared(path)
    name, given = str(path[-1]), _given(problem["input"])
    meaning = f" ({field.description})" if field is not None and field.description else ""
    match problem["type"]:
        case "missing":
            place = document.key_place(path[:-1])
            return Fault(place, _dotted(path), f"it is missing{meaning}")
        case "extra_forbidden":
            allowed = list(section.model_fields) if section else []
            hint = did_you_mean(name, allowed)
            text = f"there is no field {name!r} here{hint}; allowed are: {', '.join(allowed)}"
            return Fault(document.key_place(path), _dotted(path), text)
        case "literal_error":
            allowed = [str(choice) for choice in get_args(field.annotation)] if field else []
            hint = did_you_mean(str(problem["input"]), allowed)
            text = f"{given} is not allowed{hint}; allowed are: {', '.join(allowed)}"
        case "model_type" | "model_attributes_type":
            inner, _ = _declared((*path, ""))
            fields = ", ".join(inner.model_fields) if inner else ""
            text = f"it must be a mapping of {fields}, not {given}"
        case "value_error":
            text = problem["msg"].removeprefix("Value error, ")
        case _:
            wanted = problem["msg"].replace("Input should", "it must").replace("String", "it")
            text = f"{wanted[0].lower()}{wanted[1:]}{meaning}, not {given}"
    return Fault(document.place(path), _dotted(path), text)


def _declared(path: FieldPath) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The section that the last part of a path stands in, and what it is declared as there."""
    section: type[BaseModel] | None = FleetFile
    field: FieldInfo | None = None
    for i, step in enumerate(path):
        last = i == len(path) - 1
        if section is None or isinstance(step, int):
            continue
        if section is FleetFile and step not in SECTIONS:
            field, inner = None, TaskClass
        else:
            field = section.model_fields.get(step)
            inner = _model_in(field.annotation) if field is not None else None
        if not last:
            section = inner
    return section, field


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, also in a list or with None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _given(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_GIVEN else f"{text[:LONGEST_GIVEN]}..."


def _dotted(path: FieldPath) -> str:
    return ".".join(map(str, path))


def _line(path: Path, fault: Fault) -> str:
    where = f"{path}:{fault.place.line}:{fault.place.column}"
    return f"{where}: {fault.field}: {fault.text}" if fault.field else f"{where}: {fault.text}"
