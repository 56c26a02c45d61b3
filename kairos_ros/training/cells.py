"""Long simulations in pieces: cells run in parallel processes and are kept as they finish.

A file of cells holds one JSON object per line. Running the same cells again runs only those that
are missing; a line torn by a crash counts as missing.
"""

import json
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError

Key = Mapping[str, Any]
"""What a cell is, JSON-ready: the same key, the same result."""


def run_cells(
    file: Path,
    keys: Sequence[Key],
    run: Callable[[Key], Any],
    *,
    processes: int,
    report: Callable[[int, Key, Any], None],
) -> list[Any]:
    """Results of `keys`, in their order, from `file` or by `run(key)` in `processes` processes.

    `run` is a function of a module (it is sent to other processes) and returns what JSON can hold.
    `report(missing, key, result)` is called for each cell as it finishes.
    Raises ConfigError for a file that cannot be written. An interrupt ends the processes; what
    finished is kept.
    """
    done = read_cells(file)
    missing = [key for key in keys if _text(key) not in done]
    if missing:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            stream = file.open("a")
        except OSError as error:
            raise ConfigError(f"cells cannot be kept in {file}: {error.strerror}") from None
        with stream, _pool(min(processes, len(missing))) as pool:
            if stream.tell() and not file.read_text().endswith("\n"):
                stream.write("\n")
            try:
                jobs = {pool.submit(run, key): key for key in missing}
                for left, job in zip(reversed(range(len(jobs))), as_completed(jobs), strict=True):
                    key, result = jobs[job], job.result()
                    done[_text(key)] = result
                    stream.write(json.dumps({"cell": key, "result": result}) + "\n")
                    stream.flush()
                    report(left, key, result)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
    return [done[_text(key)] for key in keys]


def read_cells(file: Path) -> dict[str, Any]:
    """Results in `file` by the text of their key; nothing where there is no file."""
    done: dict[str, Any] = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        done[_text(row["cell"])] = row["result"]
    return done


def _text(key: Key) -> str:
    return json.dumps(key, sort_keys=True)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # the parent ends its children
    )
