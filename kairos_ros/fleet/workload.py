"""From fleet files to what the planner plans for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.load_profile import LoadProfile
from kairos_ros.document.faults import did_you_mean
from kairos_ros.fleet.fleet_file import FleetFile, Monitor, Safety, TaskClass
from kairos_ros.fleet.load_profiles import FoundProfile, profile_of
from kairos_ros.planning.workload import Cluster, Need, RobotClass, Use, Workload, scaled

GIB_PER_GB = 1e9 / 2**20
"""MiB per GB."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Numbers in the place of the file's."""

    robots: int | None = None
    """In all, split over the tasks as in the file."""
    of_task: Mapping[str, int] | None = None
    """Task -> its robots."""


def what_if(texts: Sequence[str]) -> WhatIf:
    """Reads `robots=64` and `robots.TASK=8`. Raises ConfigError for another text."""
    robots, of_task = None, {}
    for text in texts:
        name, _, number = text.partition("=")
        if not number.isdecimal() or not 1 <= int(number) <= 100_000:
            raise ConfigError(f"what-if {text!r}: write robots=64 or robots.TASK=8, 1 to 100000")
        if name == "robots":
            robots = int(number)
        elif name.startswith("robots.") and name != "robots.":
            of_task[name.removeprefix("robots.")] = int(number)
        else:
            raise ConfigError(f"what-if {text!r}: only robots=N and robots.TASK=N can be changed")
    if robots is not None and of_task:
        raise ConfigError("what-if: give robots of the whole fleet or of tasks, not both")
    return WhatIf(robots, of_task or None)


def fleet_workload(
    fleets: Sequence[tuple[Path, FleetFile]], found: Sequence[FoundProfile], changed: WhatIf
) -> tuple[Workload, Cluster]:
    """One workload of all files, which share one cluster.

    Raises ConfigError for robots that are in two files, clusters that differ, and models without a
    profile."""
    cluster = _cluster(fleets)
    _check_robots(fleets)
    tasks = [
        (path, fleet, name, task) for path, fleet in fleets for name, task in fleet.tasks.items()
    ]
    names = [name for _, _, name, _ in tasks]
    groups = [
        [robot for group in fleet.robot_fleet if group.task == name for robot in group.robots]
        for _, fleet, name, _ in tasks
    ]
    counts = _counts(names, [len(robots) for robots in groups], changed)
    classes = []
    profiles: dict[Use, LoadProfile] = {}
    for (path, fleet, name, task), robots, count in zip(tasks, groups, counts, strict=True):
        label = name if names.count(name) == 1 else f"{path.stem}:{name}"
        classes.append(_robot_class(label, task, _robots(robots, count, name)))
        for component, one in task.components.used.items():
            models = [one.model, fleet.located(one.model)]
            profiles[one.model, component] = profile_of(found, models, component, cluster.device)
    return Workload(tuple(classes), profiles), cluster


def _robot_class(name: str, task: TaskClass, robots: tuple[str, ...]) -> RobotClass:
    return RobotClass(
        name=name,
        robots=robots,
        action_s=task.pipeline.action_period_ms / 1e3,
        needs={
            component: Need(
                one.model,
                one.slo_ms / 1e3,
                one.freq_hz if isinstance(one, Safety | Monitor) else 0.0,
            )
            for component, one in task.components.used.items()
        },
        system2_ratio=task.rules.system2_ratio,
        value=task.value,
        floor_hz=task.min_actions_per_s,
    )


def _cluster(fleets: Sequence[tuple[Path, FleetFile]]) -> Cluster:
    (first, fleet), *others = fleets
    ours = fleet.server_cluster
    for path, other in others:
        if other.server_cluster != ours:
            raise ConfigError(
                f"{path} has the servers {other.server_cluster.num_servers} x "
                f"{other.server_cluster.gpu_type}, but {first} has {ours.num_servers} x "
                f"{ours.gpu_type}; fleets that are planned together share one server_cluster"
            )
    memory = ours.gpu_memory_gb
    return Cluster(
        ours.num_servers - ours.hot_standby,
        ours.gpu_type,
        math.inf if memory is None else memory * GIB_PER_GB,
        ours.hot_standby,
        tuple((host.name, host.gpus) for host in ours.hosts),
    )


def _check_robots(fleets: Sequence[tuple[Path, FleetFile]]) -> None:
    owner: dict[str, Path] = {}
    twice: dict[str, tuple[Path, Path]] = {}
    for path, fleet in fleets:
        for robot in fleet.robots:
            if robot in owner and owner[robot] != path:
                twice[robot] = (owner[robot], path)
            owner[robot] = path
    if twice:
        robot, (one, other) = next(iter(twice.items()))
        more = f", and {len(twice) - 1} more" if len(twice) > 1 else ""
        raise ConfigError(
            f"robot {robot!r} is in {one} and in {other}{more}; a robot does one task: rename it "
            "(names) or remove it from one file"
        )


def _counts(names: Sequence[str], counts: Sequence[int], changed: WhatIf) -> list[int]:
    if changed.of_task:
        for name in changed.of_task:
            if name not in names:
                hint = did_you_mean(name, names)
                tasks = ", ".join(names)
                raise ConfigError(f"what-if: there is no task {name!r}{hint}; tasks are {tasks}")
        return [changed.of_task.get(name, n) for name, n in zip(names, counts, strict=True)]
    if changed.robots is None:
        return list(counts)
    return scaled(counts, changed.robots)


def _robots(named: Sequence[str], count: int, task: str) -> tuple[str, ...]:
    """The first ones of the file; more have names of their own."""
    taken, robots, i = set(named), list(named[:count]), len(named)
    while len(robots) < count:
        i += 1
        if (name := f"{task}_{i}") not in taken:
            robots.append(name)
    return tuple(robots)
