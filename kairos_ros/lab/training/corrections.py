"""Failed tasks of a fleet as demonstrations: the expert takes over where the arm had come to.

A dataset of `kairos bag export` tells scene, seed and every executed action, so the simulator can
be brought to every state that the arm was in, bit for bit. From some of them on Meta-World's
scripted expert acts, and what it does is a demonstration from states that the policy really
reaches (DAgger, with whole recoveries instead of single labels, because policies learn chunks).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.text_file import read_json
from kairos_ros.lab.training.demonstrations import (
    AFTER_SUCCESS,
    MAX_STEPS,
    Demonstrations,
    follow_lengths,
)
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.metaworld_scenes import ACTION_DIM, SCENES, STATE_DIM, expert
from kairos_ros.robot.adapters.sim.sim import SimAdapter, metaworld_body

SOURCES = "meta/kairos_ros.json"
COLUMNS = ("episode_index", "observation.state", "action", "held_periods", "attempt")
EVERY = 50
"""Executed actions between two states of a task from which the expert takes over."""


@dataclass(frozen=True, slots=True)
class FleetTask:
    """What an arm executed in one task."""

    scene: str
    seed: int
    state: np.ndarray
    """float32 [T, 39], before each action."""
    action: np.ndarray
    """float32 [T, 4]."""
    held: np.ndarray
    """int64 [T]: control periods before each action in which the arm held."""


def fleet_tasks(folder: Path) -> list[FleetTask]:
    """The episodes of a dataset of `kairos bag export`.

    Raises ConfigError for another dataset, a damaged one, and one of other arms or scenes than
    Meta-World's.
    """
    if not (folder / SOURCES).is_file():
        raise ConfigError(f"{folder} is no dataset of kairos bag export ({SOURCES} is missing)")
    document = read_json(folder / SOURCES)
    try:
        sources = [
            (int(one["episode_index"]), str(one["scene"]), int(one["seed"]))
            for one in document["episodes"]
        ]
        columns = _columns(folder)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{folder} is damaged ({type(error).__name__} {error!s:.200}); export it again"
        ) from error
    dims = columns["observation.state"].shape[1], columns["action"].shape[1]
    if dims != (STATE_DIM, ACTION_DIM):
        raise ConfigError(
            f"{folder} has {dims[0]} state and {dims[1]} action values; Meta-World's simulated arm "
            f"has {STATE_DIM} and {ACTION_DIM}"
        )
    found = []
    for number, scene, seed in sources:
        rows = columns["episode_index"] == number
        if scene in SCENES and rows.any() and not columns["attempt"][rows].any():
            found.append(
                FleetTask(
                    scene,
                    seed,
                    columns["observation.state"][rows],
                    columns["action"][rows],
                    columns["held_periods"][rows],
                )
            )
    if not found:
        raise ConfigError(f"no episode of {folder} is a task of Meta-World without retries")
    return found


def _columns(folder: Path) -> dict[str, np.ndarray]:
    """Read from its tables, since LeRobot asks the hub for what is missing of a dataset here."""
    import pandas

    table = pandas.read_parquet(folder / "data", columns=list(COLUMNS))
    return {name: np.stack(table[name].to_list()) for name in COLUMNS}


def corrections(
    tasks: Sequence[FleetTask], report: Callable[[str], None], every: int = EVERY
) -> dict[str, Demonstrations]:
    """By scene: what the expert does from every `every`th state of these tasks on.

    A task is left at the first state that the simulator does not repeat bit for bit. States from
    which the expert fails are left out. Both are counted in what is reported.
    """
    shown: dict[str, list[_Recovery]] = defaultdict(list)
    attempts: Counter[str] = Counter()
    strayed = 0
    arm = SimAdapter(metaworld_body())
    for number, task in enumerate(tasks, start=1):
        arm.reset(TaskGoal(SCENES[task.scene], task.scene, task.seed))
        for at, (state, action, held) in enumerate(
            zip(task.state, task.action, task.held, strict=True)
        ):
            for _ in range(held):
                arm.hold()
            if not np.array_equal(arm.state(), state):
                strayed += 1
                break
            if at % every == 0:
                saved = arm.save()
                recovery = _recover(arm, task.scene)
                arm.restore(saved)
                attempts[task.scene] += 1
                if recovery is not None:
                    shown[task.scene].append(recovery)
            arm.act(action)
        report(
            f"corrections: {number} of {len(tasks)} tasks, {strayed} not repeated to their end; "
            f"the expert solved {sum(map(len, shown.values()))} of {attempts.total()} states"
        )
    arm.close()
    return {scene: _demonstrations(parts, attempts[scene]) for scene, parts in shown.items()}


def joined(some: Demonstrations, more: Demonstrations) -> Demonstrations:
    """Both, of one scene."""
    return Demonstrations(
        np.concatenate([some.state, more.state]),
        np.concatenate([some.action, more.action]),
        np.concatenate([some.follows, more.follows]),
        some.episodes + more.episodes,
        some.attempts + more.attempts,
    )


_Recovery = tuple[np.ndarray, np.ndarray]
"""States, float32 [T, 39], and the expert's actions, float32 [T, 4]."""


def _recover(arm: SimAdapter, scene: str) -> _Recovery | None:
    """The expert's way to success from here; None where it has none."""
    teacher = expert(scene)
    states, actions = [], []
    success_at = None
    for step in range(MAX_STEPS):
        action = np.clip(teacher.get_action(arm.observation), -1, 1).astype(np.float32)
        states.append(arm.state())
        actions.append(action)
        arm.act(action)
        if success_at is None and arm.succeeded():
            success_at = step
        if success_at is not None and step >= success_at + AFTER_SUCCESS:
            break
    return None if success_at is None else (np.stack(states), np.stack(actions))


def _demonstrations(parts: Sequence[_Recovery], attempts: int) -> Demonstrations:
    follows = [follow_lengths(np.zeros(len(states), bool)) for states, _ in parts]
    return Demonstrations(
        np.concatenate([states for states, _ in parts]),
        np.concatenate([actions for _, actions in parts]),
        np.concatenate(follows),
        len(parts),
        attempts,
    )
