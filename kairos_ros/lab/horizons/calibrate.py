"""Calibrates horizons of a policy on simulated episodes: a plan and a static horizon per task."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import (
    Calibrated,
    HorizonCalibration,
    HorizonPlan,
    StaticHorizons,
)
from kairos_ros.lab.horizons.search import (
    Found,
    SearchOptions,
    Trial,
    find_plan,
    longest_best,
    static_successes,
)
from kairos_ros.lab.metrics.cells import Key, run_cells, source_version
from kairos_ros.lab.training.bench import EPISODES, arms, policy_under_test
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES


def calibrate(
    policy: Path,
    *,
    scenes: Sequence[str] = tuple(SCENES),
    options: SearchOptions | None = None,
    disturbance: float = 0.0,
    lead: int = 0,
    static_only: bool = False,
    keep: HorizonCalibration | None = None,
    work: Path = Path("runs/calibrate"),
    processes: int = 1,
    report: Callable[[str], None] = print,
) -> HorizonCalibration:
    """A plan and a tuned static horizon for each of `scenes`; finished tasks are kept in `work`.

    `disturbance`: standard deviation of noise on executed hand motions, action units.
    `lead`: actions executed while a chunk is made (`rollout.run_episodes`).
    `static_only`: no plan is searched for; the plan of a task is that of `keep`, a calibration of
    this policy, or without one the task's tuned static horizon.
    Raises ConfigError for an unknown scene, a ladder beyond the policy's chunk, or where `keep` is
    another policy's.
    """
    options = options or SearchOptions()
    if unknown := [scene for scene in scenes if scene not in SCENES] or not scenes:
        raise ConfigError(f"unknown tasks {unknown}; choose from {', '.join(SCENES)}")
    under_test = policy_under_test(str(policy))
    chunk = under_test.chunk_size
    if options.ladder[-1] > chunk:
        raise ConfigError(f"ladder: horizon {options.ladder[-1]} exceeds the chunk of {chunk}")
    if keep:
        keep.require_policy(under_test.policy_id)
    settings = asdict(options) | {"disturbance": disturbance, "lead": lead}
    common = {"policy": str(policy), "policy_id": under_test.policy_id, **settings}

    def cells(
        run: Callable[[Key], Any],
        what: str,
        line: Callable[[Any], str],
        of_scenes: Sequence[dict[str, Any]],
    ) -> list[Any]:
        return run_cells(
            work / "cells.jsonl",
            [common | {"search": what} | of_scene for of_scene in of_scenes],
            run,
            code=source_version((*EPISODES, "lab/horizons/search.py", "core/horizons/evidence.py")),
            processes=processes,
            finished=lambda left, key, row: report(
                f"{key['scene']}, {what}: {line(row)} ({left} tasks left)"
            ),
        )

    rows = cells(_tune, "static", _static_line, [{"scene": scene} for scene in scenes])
    static = _static(scenes, [{int(h): ok for h, ok in row.items()} for row in rows], settings)
    if keep:
        return replace(keep, static=static)
    if static_only:
        return HorizonCalibration(
            policy_id=under_test.policy_id,
            chunk_size=chunk,
            tasks={names: HorizonPlan((), h) for names, h in static.tasks.items()},
            unknown=_unknown(scenes, static.tasks.values()),
            how=settings | {"static_only": True},
            static=static,
        )
    open_tasks = sum(h < options.ladder[-1] for h in static.tasks.values())
    tests = [
        {"scene": names[0], "tuned": h, "task_error": options.error / max(1, open_tasks)}
        for names, h in static.tasks.items()
    ]
    found = cells(_search, "plan", _line, tests)
    plans: dict[tuple[str, ...], HorizonPlan] = {
        (scene, SCENES[scene]): HorizonPlan(tuple(row["rounds"]), row["after"])
        for scene, row in zip(scenes, found, strict=True)
    }
    return HorizonCalibration(
        policy_id=under_test.policy_id,
        chunk_size=chunk,
        tasks=plans,
        unknown=_unknown(scenes, [plan.after for plan in plans.values()]),
        how=settings | {"found": dict(zip(scenes, found, strict=True))},
        static=static,
    )


def _unknown(scenes: Sequence[str], horizons: Iterable[int]) -> HorizonPlan | None:
    """Of other tasks: the shortest of all scenes; what a few bear says nothing of others."""
    return HorizonPlan((), min(horizons)) if {*scenes} == SCENES.keys() else None


def _static(
    scenes: Sequence[str], successes: Sequence[dict[int, int]], settings: dict[str, Any]
) -> StaticHorizons:
    """Per task, and over all of them together."""
    together = {h: sum(of_task[h] for of_task in successes) for h in settings["ladder"]}
    of = dict(zip(scenes, successes, strict=True))
    used = ("ladder", "episodes", "static_seed", "disturbance", "lead")
    return StaticHorizons(
        {(scene, SCENES[scene]): longest_best(of[scene]) for scene in scenes},
        longest_best(together),
        {name: settings[name] for name in used} | {"successes": {**of, "all": together}},
    )


def _tune(key: Key) -> dict[int, int]:
    return static_successes(*_trial(key))


def _search(key: Key) -> dict[str, Any]:
    trial, options = _trial(key)

    def report(line: str) -> None:
        print(f"{key['scene']}: {line}", flush=True)  # from the process that searches

    return _row(find_plan(trial, options, key["tuned"], key["task_error"], report))


def _trial(key: Key) -> tuple[Trial, SearchOptions]:
    from kairos_ros.lab.training.rollout import run_episodes

    under_test, scene = policy_under_test(key["policy"]), key["scene"]
    names = {name: key[name] for name in SearchOptions.__slots__}
    options = SearchOptions(**names | {"ladder": tuple(key["ladder"])})

    def trial(plan: HorizonPlan, seeds: Sequence[int]) -> list[tuple[bool, int]]:
        decide = Calibrated(
            HorizonCalibration(under_test.policy_id, under_test.chunk_size, {}, plan)
        )
        bodies = arms(key["policy"], scene)
        episodes = run_episodes(
            under_test, scene, seeds, decide, bodies, key["disturbance"], key["lead"]
        )
        return [(episode.success, episode.rounds) for episode in episodes]

    return trial, options


def _row(found: Found) -> dict[str, Any]:
    row = asdict(found)
    plan: dict[str, Any] = row.pop("plan")
    tests = [
        test | {"evidence": float(f"{test['evidence']:.3g}"), "needed": round(test["needed"])}
        for test in row.pop("tests")
    ]
    return plan | {name: round(v, 4) for name, v in row.items()} | {"tests": tests}


def _static_line(row: dict[str, int]) -> str:
    return ", ".join(f"{h}: {ok}" for h, ok in row.items())


def _line(row: dict[str, Any]) -> str:
    plan = HorizonPlan(tuple(row["rounds"]), row["after"])
    return (
        f"{plan}; {row['rounds_per_episode']:.1f} rounds per episode instead of "
        f"{row['reference_rounds']:.1f}, success {row['success']:.1%} "
        f"(reference {row['reference_success']:.1%}), {row['episodes']} episodes"
    )
