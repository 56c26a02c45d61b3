"""Runs from wherever they are: a run folder, a bag, or a folder with runs somewhere below it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.runs.run import FleetRun, TaskRecord
from kairos_ros.recording.runs.run_files import is_run, load_run

BAG = "bag"
"""Folder of a run in which the same run was recorded."""
DEPTH = 4
"""Folders below the one given that are searched for runs."""


@dataclass(frozen=True, slots=True)
class NamedRun:
    name: str
    """Unique among the runs read together."""
    path: Path
    run: FleetRun
    configuration: dict[str, Any]


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The runs and bags at or below `paths`, each once, in the order given and then by name.

    Raises ConfigError for a path without any.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: there is no such file or folder")
        below = list(_below(path, DEPTH))
        if not below:
            raise ConfigError(
                f"{path}: neither a run (run.json) nor a bag (*.mcap), and none below it"
            )
        for one in below:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def read_run(path: Path) -> tuple[FleetRun, dict[str, Any]]:
    """A run folder or a bag. Raises ConfigError.

    A run that was not told its rounds but lies beside its bag, as a recorded demo does, is read
    from the bag.
    """
    if is_run(path):
        run, configuration = load_run(path)
        if run.rounds or not _is_bag(path / BAG):
            return run, configuration
        return _as_told(_read_bag(path / BAG), run), configuration
    return _read_bag(path), {"bag": path.name}


def _as_told(recorded: FleetRun, told: FleetRun) -> FleetRun:
    """A run from its bag with what only the giver of its tasks knows: their numbers, when they
    arrived, and how long new ones were given. So it is comparable to a run that has no bag.

    Tasks are the same by scene and seed; those of the bag that are not come after all others.
    """
    known = _by_scene_and_seed(told)
    same = {t: known[key] for key, t in _by_scene_and_seed(recorded).items() if key in known}
    if not same:
        return recorded
    ahead_s = median(mine.given_s - theirs.given_s for mine, theirs in same.items())
    others = count(1 + max(task.number for task in told.tasks))
    tasks = []
    for task in recorded.tasks:
        if theirs := same.get(task):
            queued_s = theirs.given_s - theirs.wanted_s
            tasks.append(replace(task, number=theirs.number, wanted_s=task.given_s - queued_s))
        else:
            tasks.append(replace(task, number=next(others)))
    open_s = tuple((start + ahead_s, end + ahead_s) for start, end in told.open_s)
    return replace(recorded, tasks=tuple(tasks), open_s=open_s)


def _by_scene_and_seed(run: FleetRun) -> dict[tuple[str, int], TaskRecord]:
    """Without tasks that share both."""
    times = Counter((task.scene, task.seed) for task in run.tasks)
    return {key: t for t in run.tasks if times[key := (t.scene, t.seed)] == 1}


def _read_bag(path: Path) -> FleetRun:
    from kairos_ros.recording.fleet_run import read_bag

    return read_bag(path)


def read_runs(paths: Iterable[Path]) -> Iterator[NamedRun]:
    """Reads all runs at or below `paths`, one by one. Raises ConfigError."""
    found = find_runs(paths)
    for name, path in zip(_names(found), found, strict=True):
        yield NamedRun(name, path, *read_run(path))


def _below(path: Path, depth: int) -> Iterator[Path]:
    if is_run(path) or _is_bag(path):
        yield path
    elif path.is_dir() and depth:
        # a recorded comparison: its runs first, then the bag that holds all of them
        for child in sorted(path.iterdir(), key=lambda child: (_is_bag(child), child.name)):
            # a link such as runs/latest leads to what is found anyway
            if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                yield from _below(child, depth - 1)


def bag_name(path: Path) -> str:
    """Of a bag, for readers: its folder's name; of one in a run's folder, with that folder's."""
    folder = path.resolve()
    folder = folder.parent if folder.suffix == ".mcap" else folder
    return "/".join(folder.parts[-2:]) if folder.name == BAG else folder.name


def _is_bag(path: Path) -> bool:
    if path.is_file():
        return path.suffix == ".mcap"
    return path.is_dir() and any(path.glob("*.mcap"))


def _names(paths: list[Path]) -> list[str]:
    """As much of the end of each path as it takes to tell all apart, without what all share."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            break
    return _without_shared(_without_shared(names, "/"), ",")


def _without_shared(names: list[str], separator: str) -> list[str]:
    """Drops the pieces between separators that are the same at the same place in all names."""
    pieces = [name.split(separator) for name in names]
    if len(names) < 2 or len({len(p) for p in pieces}) > 1:
        return names
    differing = [i for i, column in enumerate(zip(*pieces, strict=True)) if len(set(column)) > 1]
    return [separator.join(p[i] for i in differing) for p in pieces]
