"""Runs the cells of a study that have no result yet, and keeps every result as it comes."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.evaluation.study.cell import Cell, Metrics, code_version
from kairos_ros.evaluation.study.results import Result, ResultFile, read_results

RunCell = Callable[[Cell], Metrics]
"""Importable by name, so that other processes find it."""
Finished = Callable[[int, Cell, float], None]
"""Cells done so far, the newest one and how long it took, s."""
AHEAD = 2
"""Cells handed out per process: enough that none waits, few enough that Ctrl-C comes through."""


def missing_cells(folder: Path, cells: Sequence[Cell]) -> list[Cell]:
    """Cells, each once, without a result by this very code."""
    results = read_results(folder)
    unique = {cell.key: cell for cell in cells}
    return [
        cell
        for key, cell in unique.items()
        if key not in results or results[key].code != code_version()
    ]


def run_cells(
    folder: Path, cells: Sequence[Cell], run: RunCell, processes: int, finished: Finished
) -> None:
    """Runs `cells`; on KeyboardInterrupt, too, whatever has finished is kept.

    Raises KairosError, naming the cell, where one fails.
    """
    if processes < 1:
        raise ConfigError(f"a study runs in at least 1 process, not {processes}")
    with ResultFile(folder) as file:
        done = _here(cells, run) if processes == 1 else _elsewhere(cells, run, processes)
        for count, (cell, metrics, took_s) in enumerate(done, 1):
            file.append(cell, Result(cell.key, code_version(), took_s, metrics))
            finished(count, cell, took_s)


Done = tuple[Cell, Metrics, float]


def _here(cells: Sequence[Cell], run: RunCell) -> Iterator[Done]:
    for cell in cells:
        yield _timed(cell, run)


def _elsewhere(cells: Sequence[Cell], run: RunCell, processes: int) -> Iterator[Done]:
    context = multiprocessing.get_context("spawn")  # no locks of this process's threads inside
    pool = ProcessPoolExecutor(processes, context, initializer=_ignore_interrupts)
    try:
        left = iter(cells)
        running: set[Future[Done]] = set()
        while True:
            while len(running) < AHEAD * processes and (cell := next(left, None)) is not None:
                running.add(pool.submit(_timed, cell, run))
            if not running:
                return
            ready, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ready:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _timed(cell: Cell, run: RunCell) -> Done:
    started = time.perf_counter()
    try:
        metrics = run(cell)
    except KairosError as error:
        raise type(error)(f"the cell {cell.model_dump()}: {error}") from None
    return cell, metrics, time.perf_counter() - started


def _ignore_interrupts() -> None:
    """Ctrl-C reaches the whole process group; only the parent decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
