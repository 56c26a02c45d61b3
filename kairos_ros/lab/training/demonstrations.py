"""Collects expert demonstrations with disturbances, labelled so that every chunk is consistent.

The executed action is disturbed in bursts (noise, a pause, a push); between bursts the expert runs
clean. The label of a step is always the expert's clean action. A chunk that starts at step t
follows the trajectory that really happened until the next burst begins: those positions are its
target, the rest is masked. So the policy sees how to recover from states off the expert's path,
and never learns to answer noise that it cannot foresee.
"""

import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kairos_ros.core.errors import KairosError
from kairos_ros.host.process_pool import process_pool
from kairos_ros.robot.adapters.sim.metaworld_scenes import (
    ACTION_DIM,
    GRIPPER,
    expert,
    make_scene,
    policy_state,
    reset_scene,
)

HELD_OUT_SEED = 1_000_000
"""Evaluation uses scene seeds from here up; demonstrations stay below."""

MAX_STEPS = 400
AFTER_SUCCESS = 40


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Successful episodes of one scene, concatenated."""

    state: np.ndarray
    """float32 [T, state_dim]."""
    action: np.ndarray
    """float32 [T, action_dim], the expert's clean action in [-1, 1]."""
    follows: np.ndarray
    """int64 [T], at least 1: how many actions from here on agree with what was executed."""
    episodes: int
    attempts: int
    seen: np.ndarray | None = None
    """float32 [T, S]: what the eyes of a camera policy shall tell; None without cameras."""


Record = Callable[[str, int, int], Demonstrations]
"""Scene, successful episodes, seed -> demonstrations."""


def burst(rng: np.random.Generator, steps: int) -> np.ndarray:
    """One disturbance, float64 [steps, 4], added to the action; NaN rows mean 'stand still'."""
    kind = rng.random()
    if kind < 0.2:
        return np.full((steps, ACTION_DIM), np.nan)
    if kind < 0.5:
        push = rng.normal(0, 0.7, ACTION_DIM)
        push[GRIPPER] = 0.0
        return np.tile(push, (steps, 1))
    return rng.normal(0, [0.6, 0.6, 0.6, 0.3], (steps, ACTION_DIM))


def disturbances(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A whole episode's disturbance, float64 [MAX_STEPS, 4], and which steps it touches, bool."""
    added = np.zeros((MAX_STEPS, ACTION_DIM))
    touched = np.zeros(MAX_STEPS, bool)
    at = int(rng.integers(0, 60))
    while at < MAX_STEPS:
        end = min(MAX_STEPS, at + int(rng.integers(3, 16)))
        added[at:end] = burst(rng, end - at)
        touched[at:end] = True
        at = end + int(rng.integers(40, 110))
    return added, touched


def follow_lengths(touched: np.ndarray) -> np.ndarray:
    """For each step, how many labels from it on lie on the executed trajectory, int64 [T].

    A disturbed step's own label is still right; what comes after it is not what the label led to.
    """
    follows = np.empty(len(touched), np.int64)
    run = 0
    for t in range(len(touched) - 1, -1, -1):
        run = 1 if touched[t] else run + 1
        follows[t] = run
    return follows


def record_episode(
    env: Any, scene: str, seed: int, watch: Callable[[np.ndarray], None] = lambda obs: None
) -> tuple[np.ndarray, ...] | None:
    """One disturbed episode as (state, action, follows), or None where the expert failed.

    `watch` is called before every step with Meta-World's own observation.
    """
    rng = np.random.default_rng([seed, 7])
    added, touched = disturbances(rng)
    teacher = expert(scene)
    obs = reset_scene(env, seed)
    states, actions = [], []
    last_grip, success_at = -1.0, None
    for t in range(MAX_STEPS):
        watch(obs)
        action = np.clip(teacher.get_action(obs), -1, 1)
        states.append(policy_state(obs))
        actions.append(action)
        executed = np.clip(action + added[t], -1, 1)
        if np.isnan(added[t, 0]):
            executed = np.array([0.0, 0.0, 0.0, last_grip])
        last_grip = executed[GRIPPER]
        obs, _, _, _, info = env.step(executed.astype(np.float32))
        if success_at is None and info["success"]:
            success_at = t
        if success_at is not None and t >= success_at + AFTER_SUCCESS:
            break
    if success_at is None:
        return None
    count = len(states)
    return (
        np.stack(states),
        np.stack(actions).astype(np.float32),
        follow_lengths(touched[:count]),
    )


def record_scene(scene: str, episodes: int, seed: int) -> Demonstrations:
    """`episodes` successful disturbed episodes of one scene, on scene seeds below HELD_OUT_SEED."""
    warnings.filterwarnings("ignore", message="Constant")  # the experts clip on purpose
    env = make_scene(scene)
    kept: list[tuple[np.ndarray, ...]] = []
    first = (seed * 10_007) % (HELD_OUT_SEED // 2)
    attempts = 0
    while len(kept) < episodes:
        if attempts > 4 * episodes + 20:
            raise KairosError(
                f"the expert of scene {scene!r} solved only {len(kept)} of {attempts} disturbed"
                " episodes; leave this scene out of --tasks"
            )
        episode = record_episode(env, scene, first + attempts)
        attempts += 1
        if episode is not None:
            kept.append(episode)
    state, action, follows = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return Demonstrations(state, action, follows, episodes, attempts)


def _record_file(record: Record, scene: str, episodes: int, seed: int, path: Path) -> None:
    save(record(scene, episodes, seed), path)


def save(demos: Demonstrations, path: Path) -> None:
    """Without `seen`; the file is whole or not there."""
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        state=demos.state,
        action=demos.action,
        follows=demos.follows,
        counts=np.array([demos.episodes, demos.attempts]),
    )
    partial.replace(path)


def collect(
    scenes: Iterable[str],
    episodes: int,
    seed: int,
    folder: Path,
    processes: int,
    report: Callable[[str], None],
    record: Record = record_scene,
) -> dict[str, Demonstrations]:
    """Demonstrations per scene, recorded in parallel; what `folder` already holds is not redone."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {scene: folder / f"{scene}-{episodes}x-seed{seed}.npz" for scene in scenes}
    missing = [scene for scene, path in files.items() if not path.exists()]
    if missing:
        with process_pool(processes) as pool:
            jobs = {
                pool.submit(_record_file, record, scene, episodes, seed, files[scene]): scene
                for scene in missing
            }
            try:
                for done, job in enumerate(as_completed(jobs), 1):
                    job.result()
                    report(f"demonstrations: {jobs[job]} recorded ({done}/{len(missing)})")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return {scene: load(path) for scene, path in files.items()}


def load(path: Path) -> Demonstrations:
    """What `save` wrote."""
    with np.load(path, allow_pickle=False) as data:
        episodes, attempts = (int(n) for n in data["counts"])
        return Demonstrations(data["state"], data["action"], data["follows"], episodes, attempts)
