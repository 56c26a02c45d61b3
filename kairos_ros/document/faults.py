"""Everything that is wrong with a file that somebody wrote, and where."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.marked_yaml import MarkedYaml, MarkedYamlError, Place
from kairos_ros.document.marked_yaml import Path as FieldPath
from kairos_ros.document.text_file import read_text

LONGEST_GIVEN = 60
"""Characters of a wrong value that are shown."""
LONGEST_LINE = 200
"""Characters of a line that are shown, around the place of the fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    place: Place
    field: str
    """Such as `pick.components.safety.slo_ms`; empty for the whole file."""
    text: str
    """What was given, and what is allowed."""


class FaultyFileError(ConfigError):
    """Everything that is wrong with a file, in the order of its lines."""

    def __init__(self, path: Path, faults: Sequence[Fault]) -> None:
        self.faults = sorted(faults, key=lambda fault: (fault.place.line, fault.place.column))
        super().__init__("\n".join(_line(path, fault) for fault in self.faults))


def shown(path: Path, error: FaultyFileError) -> list[str]:
    """Every fault with the line that it is in and a caret below its column, then their number."""
    lines = read_text(path).splitlines()
    told = []
    for fault, text in zip(error.faults, str(error).splitlines(), strict=True):
        told.append(text)
        if 0 < fault.place.line <= len(lines):
            line = lines[fault.place.line - 1]
            start = max(0, fault.place.column - LONGEST_LINE // 2)
            part = line[start : start + LONGEST_LINE]
            told.append("    " + "".join(one if one.isprintable() else " " for one in part))
            told.append(f"    {' ' * (fault.place.column - 1 - start)}^")
    return [*told, f"{len(error.faults)} to mend"]


def read_document(path: Path) -> MarkedYaml:
    """Raises FaultyFileError for what is no YAML, ConfigError for a file that cannot be read."""
    text = read_text(path)
    try:
        return MarkedYaml(text)
    except MarkedYamlError as error:
        raise FaultyFileError(path, [Fault(error.place, "", f"this is no YAML: {error}")]) from None


def read_model[M: BaseModel](
    path: Path,
    document: MarkedYaml,
    model: type[M],
    *,
    tags: Mapping[str, type[BaseModel]] | None = None,
) -> M:
    """A document as what it should hold. Raises FaultyFileError with everything that is wrong."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        raise FaultyFileError(path, faults_of(document, model, error, tags=tags)) from None


def first_fault(error: ValidationError, root: type[BaseModel]) -> str:
    """Field, value and what is allowed of the first of pydantic's errors, without a place."""
    problem = error.errors(include_url=False)[0]
    field = dotted(problem["loc"])
    text = _told(problem, _declared(root, None, problem["loc"], {}), None)
    return f"{field}: {text}" if field else text


def fault_at(document: MarkedYaml, path: FieldPath, text: str) -> Fault:
    """A fault of the value at `path`."""
    return Fault(document.place(path), dotted(path), text)


def faults_of(
    document: MarkedYaml,
    root: type[BaseModel],
    error: ValidationError,
    *,
    others: type[BaseModel] | None = None,
    written: dict[str, str] | None = None,
    tags: Mapping[str, type[BaseModel]] | None = None,
) -> list[Fault]:
    """pydantic's errors in our words.

    Args:
        document: what was validated.
        root: as what.
        error: what pydantic said.
        others: what the fields of `root` are that it does not name.
        written: name of a field of `root` -> how the document spells it.
        tags: discriminator of a union -> section that it stands for.
    """
    found = []
    for problem in error.errors(include_url=False):
        top, *rest = problem["loc"] or ("",)
        path = ((written or {}).get(str(top), top), *rest) if problem["loc"] else ()
        declared = _declared(root, others, path, tags or {})
        inner, _ = _declared(root, others, (*path, ""), tags or {})
        there = tuple(step for step in path if step not in (tags or {}))
        found.append(_fault(document, there, declared, inner, problem))
    return found


def did_you_mean(given: str, choices: Collection[str]) -> str:
    """A hint, or nothing."""
    close = get_close_matches(given, choices, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def dotted(path: FieldPath) -> str:
    return ".".join(map(str, path))


def _fault(
    document: MarkedYaml,
    path: FieldPath,
    declared: tuple[type[BaseModel] | None, FieldInfo | None],
    inner: type[BaseModel] | None,
    problem: Any,
) -> Fault:
    text = _told(problem, declared, inner)
    match problem["type"]:
        case "missing":
            return Fault(document.key_place(path[:-1]), dotted(path), text)
        case "extra_forbidden":
            return Fault(document.key_place(path), dotted(path), text)
    return Fault(document.place(path), dotted(path), text)


def _told(
    problem: Any,
    declared: tuple[type[BaseModel] | None, FieldInfo | None],
    inner: type[BaseModel] | None,
) -> str:
    section, field = declared
    given = _given(problem["input"])
    meaning = f" ({field.description})" if field is not None and field.description else ""
    match problem["type"]:
        case "missing":
            return f"it is missing{meaning}"
        case "extra_forbidden":
            name, allowed = str(problem["loc"][-1]), list(section.model_fields) if section else []
            hint = did_you_mean(name, allowed)
            return f"there is no field {name!r} here{hint}; allowed are: {', '.join(allowed)}"
        case "literal_error":
            allowed = [str(choice) for choice in get_args(field.annotation)] if field else []
            allowed = allowed or [problem["ctx"]["expected"]]
            hint = did_you_mean(str(problem["input"]), allowed)
            return f"{given} is not allowed{hint}; allowed are: {', '.join(allowed)}"
        case "model_type" | "model_attributes_type":
            fields = ", ".join(inner.model_fields) if inner else ""
            return f"it must be a mapping of {fields}, not {given}"
        case "json_invalid":
            return str(problem["msg"])
        case "value_error":
            return str(problem["msg"]).removeprefix("Value error, ")
        case _:
            wanted = problem["msg"].replace("Input should", "it must").replace("String", "it")
            return f"{wanted[0].lower()}{wanted[1:]}{meaning}, not {given}"


def _declared(
    root: type[BaseModel],
    others: type[BaseModel] | None,
    path: FieldPath,
    tags: Mapping[str, type[BaseModel]],
) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The section that the last part of a path stands in, and what it is declared as there."""
    section: type[BaseModel] | None = root
    field: FieldInfo | None = None
    inner: type[BaseModel] | None
    for i, step in enumerate(path):
        last = i == len(path) - 1
        if step in tags:
            section = tags[str(step)]
            continue
        if section is None or isinstance(step, int):
            continue
        if section is root and others is not None and step not in root.model_fields:
            field, inner = None, others
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


def _line(path: Path, fault: Fault) -> str:
    where = f"{path}:{fault.place.line}:{fault.place.column}"
    return f"{where}: {fault.field}: {fault.text}" if fault.field else f"{where}: {fault.text}"
