"""`kairos study fig4`: what one round would have borne, against its task's best static horizon
(Dai et al. §2.2, Figure 4).

An episode runs under `static:tuned`. At each of its rounds the simulator is saved; then it goes on
from there, once for every longer horizon: this one round is executed that far, all later ones at
the task's own horizon. What the round bears is the longest horizon up to which the task succeeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import TUNED, Floats, Horizon, HorizonContext, Static
from kairos_ros.engine.policies.calibration_file import NAME, read_calibration
from kairos_ros.lab.horizons.cells import named_rules, policy_folder
from kairos_ros.lab.metrics.cells import Key, kept_results, run_cells, source_version
from kairos_ros.lab.paper.beside import (
    Row,
    draw_cdf,
    read_paper_study,
    share,
    write_finding,
    write_rows,
)
from kairos_ros.lab.training.bench import EPISODES, arms, policy_under_test

if TYPE_CHECKING:
    from kairos_ros.lab.training.rollout import Arm
    from kairos_ros.robot.adapters.sim.sim import SavedState

FIRST_SEED = 3_200_000
"""No demonstration, evaluation, calibration or trace used these scenes."""
LADDER = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50)
LEAD = 2
SIMILAR = 0.9
"""Cosine similarity of Dai et al."""
MORE = 100
"""Actions that a branch may take beyond twice those of its episode before it counts as failed."""


@dataclass(frozen=True, slots=True)
class Once:
    """Horizon `h` in round `at`, `then` in all others."""

    h: int
    at: int
    then: int

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        length = self.h if context.round == self.at else self.then
        return Static(length)(updates, chunk, context)


def run(
    config: Path,
    out: Path,
    report: Callable[[str], None] = print,
    *,
    policy: str = "",
    size: str = "full",
    processes: int = 1,
    plot_only: bool = False,
) -> None:
    """Runs what is missing in `out`; writes table, picture and finding."""
    study = read_paper_study(config)
    folder = policy_folder(policy or study.policy)
    chosen = study.size(size, config)
    under_test = policy_under_test(str(folder))
    rule = named_rules(folder, [], {TUNED: (TUNED, NAME)})[TUNED]
    static = read_calibration(folder / NAME).static
    assert static, "named_rules has parsed it"
    of_task = {name: h for names, h in static.tasks.items() for name in names}
    keys: list[Key] = [
        {
            "policy_id": under_test.policy_id,
            "folder": str(folder),
            "task": task,
            "rule": rule,
            "tuned": of_task.get(task, static.general),
            "chunk": under_test.chunk_size,
            "seed": FIRST_SEED + episode,
        }
        for task in chosen.tasks
        for episode in range(chosen.episodes)
    ]
    cells = out / "cells.jsonl"
    code = source_version((*EPISODES, "lab/paper/borne_horizon.py"))

    def finished(left: int, key: Key, row: Sequence[Any]) -> None:
        report(f"{key['task']}: {len(row)} rounds branched ({left} episodes left)")

    rows = (
        kept_results(cells, keys, code, report)
        if plot_only
        else run_cells(
            cells, keys, branch_episode, code=code, processes=processes, finished=finished
        )
    )
    rounds = [found for row in rows for found in row]
    if not rounds:
        raise ConfigError("no episode succeeded, so no round can be judged; use more episodes")
    write_rows(out, rounds)
    _conclude(out, study, rounds, under_test.chunk_size, config.stem, size, report)


def _conclude(
    out: Path,
    study: Any,
    rounds: Sequence[dict[str, Any]],
    chunk: int,
    name: str,
    size: str,
    report: Callable[[str], None],
) -> None:
    borne = np.array([r["borne"] / r["tuned"] for r in rounds])
    similar = np.array([r["similar"] / r["tuned"] for r in rounds])
    room = np.array([r["tuned"] < chunk for r in rounds])
    twice = f"{100 * np.mean(borne >= 2):.0f} %"
    draw_cdf(
        out / "figure.png",
        {
            "task succeeds (branched)": borne.tolist(),
            "task succeeds, tasks with room": borne[room].tolist(),
            "cosine of at least 0.9": similar.tolist(),
        },
        title=f"{twice} of rounds bear twice their task's horizon or more",
        x_label="horizon that the round bears, over its task's best static one",
        of="rounds",
        grey=["cosine of at least 0.9"],
        log_x=True,
    )
    tasks = len({r["task"] for r in rounds})
    episodes = len({(r["task"], r["seed"]) for r in rounds})
    sentence = (
        f"{len(rounds)} rounds of {episodes} successful episodes of {tasks} tasks were branched. "
        f"The median round bears {np.median(borne):.1f} times its task's horizon, "
        f"{np.median(borne[room]) if room.any() else 1.0:.1f} times in tasks whose horizon is "
        f"below the chunk of {chunk}."
    )
    rows = [
        Row("rounds that bear at least twice the task's horizon", share(borne >= 2)),
        Row("same, tasks with room only", share(borne[room] >= 2)),
        Row("rounds that bear at least 1.5 times", share(borne >= 1.5)),
        Row("rounds that bear the whole chunk", share([r["borne"] >= chunk for r in rounds])),
        Row("rounds whose chunk stays within cosine 0.9 for at least twice", share(similar >= 2)),
        Row("same, tasks with room only (cosine)", share(similar[room] >= 2)),
        Row(
            "rounds whose cosine allows more than the task bears",
            share([r["similar"] > r["borne"] for r in rounds]),
        ),
    ]
    for task in dict.fromkeys(r["task"] for r in rounds):
        of = [r for r in rounds if r["task"] == task]
        mean = np.mean([r["borne"] for r in of])
        rows.append(Row(f"{task}, best {of[0]['tuned']}: mean borne", f"{mean:.1f} of {len(of)}"))
    report(write_finding(out, study, sentence, rows, f"kairos study {name} --size {size}"))


def branch_episode(key: Key) -> list[dict[str, Any]]:
    """One episode under the task's horizon, and every round of it branched; nothing where it
    failed. key: folder, task, seed, tuned, chunk.

    borne, similar: actions, the longest horizons of the ladder that the round's task and that its
    trajectory bear.
    """
    from kairos_ros.lab.training.rollout import Arm, one_round

    policy, task, tuned = policy_under_test(key["folder"]), key["task"], key["tuned"]
    bodies = arms(key["folder"], task)
    base = Arm(bodies[0], key["seed"], Once(tuned, 0, tuned))
    _reset(base, task)
    saved: list[tuple[Arm, SavedState]] = []
    chunks: list[np.ndarray] = []
    while not base.over:
        saved.append((_copy(base), base.body.save()))
        one_round(policy, task, [base], lead=LEAD)
        assert base.chunk is not None
        chunks.append(np.clip(base.chunk, -1, 1))
    if not base.body.succeeded():
        return []
    longer = [h for h in LADDER if tuned < h <= key["chunk"]]
    jobs = [(j, h) for j in range(len(saved)) for h in longer]
    failed: dict[int, int] = {}
    for at in range(0, len(jobs), len(bodies)):
        branches = []
        for (j, h), body in zip(jobs[at : at + len(bodies)], bodies, strict=False):
            arm = replace(_copy(saved[j][0]), body=body, decide=Once(h, j + 1, tuned))
            _reset(arm, task)
            body.restore(saved[j][1])
            branches.append((j, h, arm))
        limit = 2 * base.actions + MORE
        while running := [arm for *_, arm in branches if not arm.over and arm.actions < limit]:
            one_round(policy, task, running, lead=LEAD)
        for j, h, arm in branches:
            if not arm.body.succeeded():
                failed[j] = min(failed.get(j, h), h)
    executed = np.array(base.executed)
    return [
        {
            "task": task,
            "seed": key["seed"],
            "round": j + 1,
            "tuned": tuned,
            "borne": _longest(tuned, longer, [h < failed.get(j, h + 1) for h in longer]),
            "similar": _longest(
                tuned,
                longer,
                [cosine(chunks[j][:h], executed[arm.actions :][:h]) >= SIMILAR for h in longer],
            ),
        }
        for j, (arm, _) in enumerate(saved)
    ]


def cosine(chunk: np.ndarray, executed: np.ndarray) -> float:
    """Similarity of two trajectories float32 [n, D], over the length of the shorter one."""
    n = min(len(chunk), len(executed))
    one, other = chunk[:n].ravel(), executed[:n].ravel()
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other) + 1e-12))


def _longest(tuned: int, longer: Sequence[int], holds: Sequence[bool]) -> int:
    """The last of `longer` up to which all hold."""
    best = tuned
    for h, held in zip(longer, holds, strict=True):
        if not held:
            break
        best = h
    return best


def _reset(arm: "Arm", task: str) -> None:
    from kairos_ros.robot.adapter import TaskGoal
    from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

    arm.body.reset(TaskGoal(SCENES[task], task, arm.seed))


def _copy(arm: "Arm") -> "Arm":
    """With lists of its own."""
    return replace(
        arm,
        seams=arm.seams.copy(),
        steps=arm.steps.copy(),
        log=arm.log.copy(),
        moves=arm.moves.copy(),
        executed=arm.executed.copy(),
    )
