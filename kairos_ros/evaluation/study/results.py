"""Finished cells on disk: one JSON line each, appended as they finish, never rewritten."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kairos_ros.core.errors import ConfigError
from kairos_ros.evaluation.study.cell import Cell, Metrics

FILE = "cells.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """What one cell came to."""

    key: str
    """`Cell.key`."""
    code: str
    """`code_version()` of the code that ran it."""
    took_s: float
    metrics: Mapping[str, float]


def read_results(folder: Path) -> dict[str, Result]:
    """The newest result of every cell by key. A last line that was torn off is not counted.

    Raises ConfigError for a line that is something else.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    lines = path.read_bytes().split(b"\n")
    results = {}
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is torn
        if line.strip():
            result = _parse(path, number, line)
            results[result.key] = result
    return results


class ResultFile:
    """Appends results, each on the disk before the next is begun. A context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stream = (folder / FILE).open("ab+")
        self._drop_torn_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    def append(self, cell: Cell, result: Result) -> None:
        line = {
            "key": result.key,
            "code": result.code,
            "took_s": round(result.took_s, 3),
            "cell": cell.model_dump(),
            "metrics": {k: v if math.isfinite(v) else None for k, v in result.metrics.items()},
        }
        self._stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._stream.flush()

    def _drop_torn_line(self) -> None:
        """A run that was killed in the middle of a line must not spoil the next one."""
        self._stream.seek(0)
        whole = self._stream.read().rfind(b"\n") + 1
        self._stream.truncate(whole)
        self._stream.seek(0, os.SEEK_END)


def _parse(path: Path, number: int, line: bytes) -> Result:
    try:
        data = json.loads(line)
        metrics: Metrics = {
            str(name): math.nan if value is None else float(value)
            for name, value in data["metrics"].items()
        }
        return Result(str(data["key"]), str(data["code"]), float(data["took_s"]), metrics)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{path}, line {number} is no result of a study; remove the line, or the file to "
            "run all cells again"
        ) from None
