"""Calibrates the horizons of a policy: a plan per task, searched on simulated episodes."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kairos_ros.core.calibration import Calibrated, HorizonCalibration, HorizonPlan
from kairos_ros.core.errors import ConfigError
from kairos_ros.evaluation.cells import Key, run_cells, source_version
from kairos_ros.robot.metaworld_scenes import SCENES
from kairos_ros.training.bench import EPISODES, arms, policy_under_test
from kairos_ros.training.horizon_search import Found, SearchOptions, find_plan


def calibrate(
    policy: Path,
    *,
    scenes: Sequence[str] = tuple(SCENES),
    options: SearchOptions | None = None,
    disturbance: float = 0.0,
    lead: int = 0,
    work: Path = Path("runs/calibrate"),
    processes: int = 1,
    report: Callable[[str], None] = print,
) -> HorizonCalibration:
    """A plan for each of `scenes`; finished tasks are kept in `work`.

    `disturbance`: standard deviation of noise on executed hand motions, action units.
    `lead`: actions executed while a chunk is made (`rollout.run_episodes`).
    Raises ConfigError for an unknown scene or a ladder beyond the policy's chunk.
    """
    options = options or SearchOptions()
    if unknown := [scene for scene in scenes if scene not in SCENES] or not scenes:
        raise ConfigError(f"unknown tasks {unknown}; choose from {', '.join(SCENES)}")
    under_test = policy_under_test(str(policy))
    chunk = under_test.chunk_size
    if options.ladder[-1] > chunk:
        raise ConfigError(f"ladder: horizon {options.ladder[-1]} exceeds the chunk of {chunk}")
    settings = asdict(options) | {"disturbance": disturbance, "lead": lead}
    keys = [
        {"policy": str(policy), "policy_id": under_test.policy_id, "scene": scene, **settings}
        for scene in scenes
    ]
    results = run_cells(
        work / "cells.jsonl",
        keys,
        _search,
        code=source_version((*EPISODES, "training/horizon_search.py")),
        processes=processes,
        finished=lambda left, key, row: report(f"{key['scene']}: {_line(row)} ({left} tasks left)"),
    )
    plans: dict[tuple[str, ...], HorizonPlan] = {
        (scene, SCENES[scene]): HorizonPlan(tuple(row["rounds"]), row["after"])
        for scene, row in zip(scenes, results, strict=True)
    }
    return HorizonCalibration(
        policy_id=under_test.policy_id,
        chunk_size=chunk,
        tasks=plans,
        unknown=HorizonPlan((), min(plan.after for plan in plans.values())),
        how=settings | {"found": dict(zip(scenes, results, strict=True))},
    )


def _search(key: Key) -> dict[str, Any]:
    from kairos_ros.training.rollout import run_episodes

    under_test, scene = policy_under_test(key["policy"]), key["scene"]
    names = {name: key[name] for name in SearchOptions.__slots__}
    options = SearchOptions(**names | {"ladder": tuple(key["ladder"])})

    def trial(plan: HorizonPlan, seeds: Sequence[int]) -> list[tuple[bool, int]]:
        decide = Calibrated(
            HorizonCalibration(under_test.policy_id, under_test.chunk_size, {}, plan)
        )
        episodes = run_episodes(
            under_test, scene, seeds, decide, arms(scene), key["disturbance"], key["lead"]
        )
        return [(episode.success, episode.rounds) for episode in episodes]

    return _row(find_plan(trial, options))


def _row(found: Found) -> dict[str, Any]:
    row = asdict(found)
    plan = row.pop("plan")
    return plan | {name: round(v, 4) for name, v in row.items()}


def _line(row: dict[str, Any]) -> str:
    plan = HorizonPlan(tuple(row["rounds"]), row["after"])
    return (
        f"{plan}; {row['rounds_per_episode']:.1f} rounds per episode instead of "
        f"{row['reference_rounds']:.1f}, success {row['success']:.1%} "
        f"(reference {row['reference_success']:.1%}), {row['episodes']} episodes"
    )
