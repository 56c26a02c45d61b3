"""The cells of a study at one of its sizes: what is missing is run, what is there is read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.metrics.cells import (
    Key,
    Run,
    cell_name,
    read_cells,
    run_cells,
    source_version,
)

FILE = "cells.jsonl"
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell and what it came to."""

    key: Key
    metrics: Mapping[str, Any]


class SizedStudy(Protocol):
    """The content of a study file."""

    @property
    def sizes(self) -> Mapping[Any, Any]:
        """quick and full."""
        ...


@dataclass(frozen=True, slots=True)
class StudyKind[S: SizedStudy]:
    """How studies of one `kind` are read, run and reported."""

    read: Callable[[Path], S]
    cells: Callable[[S, Any], Sequence[Key]]
    run_cell: Run
    write_report: Callable[[S, Sequence[Row], Path, str, Report], None]
    decides: Sequence[str]
    """The sources that results depend on."""

    def run(
        self,
        path: Path,
        out: Path,
        report: Report,
        *,
        size: str,
        processes: int = 1,
        plot_only: bool = False,
    ) -> None:
        """Runs what is missing of a study file, and writes table, figure and finding; see
        `study_rows`. Raises ConfigError for a size that it has not."""
        study = self.read(path)
        if size not in study.sizes:
            raise ConfigError(f"{path}: sizes has no {size}")
        rows, note = study_rows(
            path.stem, size, self.cells(study, size), self.run_cell, out, report,
            decides=self.decides, processes=processes, plot_only=plot_only,
        )  # fmt: skip
        self.write_report(study, rows, out, note, report)


def study_rows(
    kind: str,
    size: str,
    keys: Sequence[Key],
    run: Run,
    out: Path,
    report: Report,
    *,
    decides: Sequence[str],
    processes: int,
    plot_only: bool,
) -> tuple[list[Row], str]:
    """The rows that are there, and a note of how many they are and what they were run by.

    Runs what is missing first, with a line per twentieth, unless `plot_only`. decides: the sources
    that results depend on. Raises ConfigError where there is no row, and what `run_cells` raises.
    """
    code = source_version(decides)
    if not plot_only:

        def finished(left: int, *_: object) -> None:
            if left % max(1, len(keys) // 20) == 0:
                report(f"{kind}: {len(keys) - left}/{len(keys)}")

        out.mkdir(parents=True, exist_ok=True)
        run_cells(out / FILE, keys, run, code=code, processes=processes, finished=finished)
    results = read_cells(out / FILE)
    rows = [Row(key, results[name].value) for key in keys if (name := cell_name(key)) in results]
    if not rows:
        raise ConfigError(f"{out} holds no result of this study at size {size}")
    outdated = sum(results[cell_name(row.key)].code != code for row in rows)
    note = f"`kairos study {kind} --size {size}`: {len(rows)} of {len(keys)} cells."
    if outdated:
        note += f" {outdated} cells were run by other code than this."
    return rows, note
