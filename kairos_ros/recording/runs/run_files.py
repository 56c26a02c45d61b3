"""A run on disk: a folder with `run.json`, `tasks.csv` and `rounds.csv`.

The tables hold one record per line, times in seconds as in `run.py`, lists joined by `;`.
`run.json` holds the rest and how many records there must be; it is written last, so that a folder
that has it is whole.
"""

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, astuple, fields
from itertools import islice
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.text_file import read_json
from kairos_ros.recording.runs.run import Activity, FleetRun, RoundRecord, Span, TaskRecord
from kairos_ros.recording.runs.summary import summarise

FORMAT = "kairos_run"
VERSION = 1
DOCUMENT = "run.json"
TASKS = "tasks.csv"
ROUNDS = "rounds.csv"
MOST_BYTES = 2_000_000_000
"""Of the description, which holds every span of every robot."""
csv.field_size_limit(2**31 - 1)  # the default, 128 KiB, holds the latencies of 7,000 rounds
_BLOCK = 10_000
"""Records that are read at once."""


def make_folder(folder: Path) -> None:
    """So that a run knows before it begins whether it can be saved. Raises ConfigError."""
    with _saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{DOCUMENT}.{os.getpid()}"
        probe.touch()
        probe.unlink()


def save_run(folder: Path, run: FleetRun, configuration: Mapping[str, Any]) -> None:
    """Writes `run` and what it was configured with into `folder`, which is made where it is not.

    A run that is already there is replaced. In the configuration, numbers that JSON does not have
    (infinity, NaN) become strings, as does what is no number, text, list or mapping.
    Raises ConfigError where it cannot be written.
    """
    make_folder(folder)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "configuration": _plain(configuration),
        "robots": list(run.robots),
        "length_s": run.length_s,
        "open_s": [list(pair) for pair in run.open_s],
        "records": {TASKS: len(run.tasks), ROUNDS: len(run.rounds)},
        "summary": _plain(asdict(summarise(run))),
        "spans": [astuple(span) for span in run.spans],
    }
    with _saving(folder):
        (folder / DOCUMENT).unlink(missing_ok=True)
        _replace(folder / TASKS, _table(TaskRecord, run.tasks))
        _replace(folder / ROUNDS, _table(RoundRecord, run.rounds))
        _replace(folder / DOCUMENT, json.dumps(document, indent=None, allow_nan=False) + "\n")


def is_run(folder: Path) -> bool:
    """Whether `save_run` finished there."""
    return (folder / DOCUMENT).is_file()


def load_run(folder: Path) -> tuple[FleetRun, dict[str, Any]]:
    """The run that `save_run` left in `folder`, and its configuration.

    Raises ConfigError for what is no run, is of another version, or is not whole.
    """
    file = folder / DOCUMENT
    if not file.exists():
        torn = " (it was never finished)" if (folder / TASKS).is_file() else ""
        raise ConfigError(f"{folder}: no run there, {DOCUMENT} is missing{torn}")
    document = read_json(file, MOST_BYTES)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(f"{file}: not the description of a run ('format' is not '{FORMAT}')")
    if document.get("version") != VERSION:
        raise ConfigError(
            f"{file}: version {document.get('version')!r}, but this kairos_ros reads version "
            f"{VERSION}; make the run again"
        )
    try:
        run = FleetRun(
            robots=tuple(str(robot) for robot in document["robots"]),
            length_s=float(document["length_s"]),
            open_s=tuple((float(start), float(end)) for start, end in document["open_s"]),
            spans=tuple(_span(*span) for span in document["spans"]),
            tasks=_records(folder / TASKS, TaskRecord, document["records"][TASKS]),
            rounds=_records(folder / ROUNDS, RoundRecord, document["records"][ROUNDS]),
        )
        _check_times(file, run)
        return run, dict(document["configuration"])
    except KeyError as error:
        raise ConfigError(f"{file}: {error} is missing") from None
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _check_times(file: Path, run: FleetRun) -> None:
    """Times are numbers; those of rounds, also NaN. Raises ConfigError."""
    known = [run.length_s, *(s for span in run.open_s for s in span)]
    known += (s for span in run.spans for s in (span.start_s, span.end_s))
    if not all(map(math.isfinite, known)):
        raise ConfigError(f"{file}: length_s, open_s or a span is no finite time")
    for i, task in enumerate(run.tasks, 1):
        if len(task.round_latency_s) != len(task.round_executed):
            raise ConfigError(
                f"{file.parent / TASKS}: record {i}: round_latency_s and round_executed have "
                f"{len(task.round_latency_s)} and {len(task.round_executed)} rounds"
            )
    for name, kind, records in (
        (TASKS, TaskRecord, run.tasks),
        (ROUNDS, RoundRecord, run.rounds),
    ):
        hints = get_type_hints(kind)
        times = [one for one, hint in hints.items() if hint is float]
        right = math.isfinite if kind is TaskRecord else (lambda s: not math.isinf(s))
        for i, record in enumerate(records, 1):
            for one in times:
                if not right(getattr(record, one)):
                    raise ConfigError(
                        f"{file.parent / name}: record {i}: {one} cannot be {getattr(record, one)}"
                    )


def _span(robot: str, start_s: float, end_s: float, activity: str) -> Span:
    if activity not in get_args(Activity):
        raise ValueError(f"span of {robot!r}: activity {activity!r}, not {get_args(Activity)}")
    return Span(str(robot), float(start_s), float(end_s), cast(Activity, activity))


def _table(kind: type, records: Iterable[Any]) -> str:
    names = [field.name for field in fields(kind)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(getattr(record, name)) for name in names] for record in records)
    return out.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return ";".join(map(_cell, value))
    if isinstance(value, np.generic):
        value = value.item()
    return str(int(value)) if isinstance(value, bool) else str(value)


def _records(file: Path, kind: type, count: int) -> tuple[Any, ...]:
    readers: dict[str, Callable[[str], Any]] = {
        "str": str,
        "int": int,
        "float": float,
        "bool": _flag,
        "tuple[float, ...]": _list_of(float),
        "tuple[int, ...]": _list_of(int),
    }
    hints = get_type_hints(kind)
    known = {
        name: readers[hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)]
        for name, hint in hints.items()
    }
    needed = {f.name for f in fields(kind) if f.default is MISSING}
    records: list[Any] = []
    try:
        with file.open(newline="") as stream:
            rows = csv.reader(stream)
            header = next(rows, [])
            _check_header(file, header, known, needed)
            while block := list(islice(rows, _BLOCK)):
                records += _block(file, kind, header, known, block, len(records))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{file}: {error}") from None
    if len(records) != count:
        raise ConfigError(f"{file}: {len(records)} records, but {DOCUMENT} says {count}")
    return tuple(records)


def _block(
    file: Path,
    kind: type,
    header: Sequence[str],
    readers: Mapping[str, Callable[[str], Any]],
    rows: Sequence[Sequence[str]],
    before: int,
) -> Iterable[Any]:
    """Records of some rows, `before` of which came earlier in the file. Raises ConfigError."""
    for i, row in enumerate(rows, before + 1):
        if len(row) != len(header):
            raise ConfigError(f"{file}: record {i} has {len(row)} columns, not {len(header)}")
    columns = {}
    for name, texts in zip(header, zip(*rows, strict=True), strict=True):
        try:
            columns[name] = list(map(readers[name], texts))
        except ValueError:
            i, text = _first_wrong(readers[name], texts)
            raise ConfigError(
                f"{file}: record {before + i + 1}: {name} cannot be {text!r}"
            ) from None
    names = list(columns)
    for values in zip(*columns.values(), strict=True):
        yield kind(**dict(zip(names, values, strict=True)))


def _first_wrong(reader: Callable[[str], Any], texts: Iterable[str]) -> tuple[int, str]:
    for i, text in enumerate(texts):
        try:
            reader(text)
        except ValueError:
            return i, text
    raise AssertionError("no text is wrong")


def _check_header(
    file: Path, header: Sequence[str], known: Iterable[str], needed: set[str]
) -> None:
    if missing := needed.difference(header):
        raise ConfigError(f"{file}:1: columns {sorted(missing)} are missing")
    if unknown := set(header).difference(known):
        raise ConfigError(f"{file}:1: columns {sorted(unknown)} are unknown")


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(kind(part) for part in text.split(";")) if text else ()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


@contextmanager
def _saving(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"no run can be saved in {folder}: {error.strerror}") from None


def _replace(file: Path, text: str) -> None:
    """So that nobody ever reads half of it."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(file)
