"""Long computations in cells: run in parallel processes, kept as they finish, never run twice.

A cell is named by a key, everything that decides its result; `code` stands for the sources that do.
A file of cells holds one JSON object per line, appended as cells finish and never rewritten.
"""

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.host.process_pool import process_pool

Key = Mapping[str, Any]
"""JSON-ready."""
Run = Callable[[Key], Any]
"""Importable by name, so that other processes find it. Returns what JSON can hold."""
PACKAGE = Path(__file__).parents[2]
AHEAD = 2
"""Cells handed out per process: enough that none waits, few enough that Ctrl-C comes through."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """What one cell came to."""

    code: str
    """`source_version` of the code that ran it."""
    took_s: float
    value: Any


def cell_name(key: Key) -> str:
    """The same for equal keys, whatever the order of their entries."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def source_version(parts: Sequence[str]) -> str:
    """Changes with every source in `parts`, files and folders below the package."""
    digest = hashlib.sha256()
    for part in parts:
        path = PACKAGE / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def read_cells(file: Path) -> dict[str, CellResult]:
    """The newest result of every cell by name; nothing where there is no file.

    A last line that was torn off is not counted. Raises ConfigError for a line that is no result.
    """
    if not file.is_file():
        return {}
    results = {}
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            result = CellResult(str(row["code"]), float(row["took_s"]), row["result"])
            results[cell_name(row["cell"])] = result
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{file}, line {number} is no result of a cell; remove the line, or the file to "
                "run all cells again"
            ) from None
    return results


def missing_cells(file: Path, keys: Sequence[Key], code: str) -> list[Key]:
    """Keys, each once, without a result by this very code."""
    results = read_cells(file)
    unique = {cell_name(key): key for key in keys}
    return [
        key for name, key in unique.items() if name not in results or results[name].code != code
    ]


def run_cells(
    file: Path,
    keys: Sequence[Key],
    run: Run,
    *,
    code: str,
    processes: int,
    finished: Callable[[int, Key, Any], None],
) -> list[Any]:
    """Results of `keys`, in their order, from `file` or by `run(key)`.

    `finished(left, key, result)` is called for each cell that ran. On KeyboardInterrupt, too,
    whatever has finished is kept. Raises KairosError, naming the cell, where one fails; ConfigError
    where the file cannot be written.
    """
    if processes < 1:
        raise ConfigError(f"cells run in at least 1 process, not {processes}")
    missing = missing_cells(file, keys, code)
    if missing:
        done = _here(missing, run) if processes == 1 else _elsewhere(missing, run, processes)
        with appendable(file) as stream, closing(done):
            for left, (key, value, took_s) in zip(reversed(range(len(missing))), done, strict=True):
                row = {"cell": key, "code": code, "took_s": round(took_s, 3), "result": value}
                stream.write(json.dumps(row).encode() + b"\n")
                stream.flush()
                finished(left, key, value)
    results = read_cells(file)
    return [results[cell_name(key)].value for key in keys]


def kept_results(
    file: Path, keys: Sequence[Key], code: str, report: Callable[[str], None]
) -> list[Any]:
    """Results of `keys`, in their order, from `file`; by other code than this, which is reported,
    too. Raises ConfigError where one has not run."""
    results = read_cells(file)
    names = [cell_name(key) for key in keys]
    if missing := sum(name not in results for name in names):
        raise ConfigError(f"{missing} of {len(keys)} cells are not in {file}; run them first")
    if outdated := sum(results[name].code != code for name in names):
        report(f"{outdated} cells were run by other code than this.")
    return [results[name].value for name in names]


def appendable(file: Path) -> BinaryIO:
    """A file of lines to append to, without the end of a line in which a run was killed.

    Raises ConfigError where it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("ab+")
    except OSError as error:
        raise ConfigError(f"cells cannot be kept in {file}: {error.strerror}") from None
    stream.seek(0)
    stream.truncate(stream.read().rfind(b"\n") + 1)
    stream.seek(0, os.SEEK_END)
    return stream


_Done = tuple[Key, Any, float]


def _here(keys: Sequence[Key], run: Run) -> Generator[_Done]:
    for key in keys:
        yield _timed(key, run)


def _elsewhere(keys: Sequence[Key], run: Run, processes: int) -> Generator[_Done]:
    pool = process_pool(min(processes, len(keys)))
    try:
        left = iter(keys)
        running: set[Future[_Done]] = set()
        while True:
            while len(running) < AHEAD * processes and (key := next(left, None)) is not None:
                running.add(pool.submit(_timed, key, run))
            if not running:
                break
            ready, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ready:
                yield future.result()
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _timed(key: Key, run: Run) -> _Done:
    started = time.perf_counter()
    try:
        value = run(key)
    except KairosError as error:
        raise type(error)(f"the cell {dict(key)}: {error}") from None
    return key, value, time.perf_counter() - started
