"""`kairos study horizon`: success and executed horizon of every horizon policy, on paired episodes.

Each cell is a few episodes of one task under one rule and one disturbance. Finished cells are kept
in `cells.jsonl`; then `horizon.csv` (tidy, a row per task and rule and one over all tasks),
`horizon.png` and `finding.md` are written from them.
"""

import csv
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizon import CALIBRATED, TUNED, HorizonPolicy, parse_horizon
from kairos_ros.document.faults import read_document, read_model
from kairos_ros.host.share import share
from kairos_ros.lab.horizons.dominance import Measured, Outcomes, horizon_interval
from kairos_ros.lab.horizons.finding import finding
from kairos_ros.lab.metrics.cells import Key, cell_name, read_cells, run_cells, source_version
from kairos_ros.lab.training.bench import EPISODES, arms, policy_under_test
from kairos_ros.recording.runs.summary import wilson_95
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.serving.calibration_file import read_calibration

COLUMNS = (
    "disturbance", "task", "rule", "episodes", "successes", "success", "success_low",
    "success_high", "mean_executed_horizon", "horizon_low", "horizon_high", "rounds_per_episode",
)  # fmt: skip


BLOCK = 16
"""Episodes per cell: what one policy call can serve together, and so that a study can grow."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StudySize(_Section):
    """How much is run."""

    episodes: Annotated[int, Field(ge=2, le=100_000)]
    """Of each task, rule and disturbance."""
    tasks: list[str] = list(SCENES)


class HorizonStudy(_Section):
    """The content of the study file."""

    question: str
    policy: str
    first_seed: Annotated[int, Field(ge=0)]
    disturbances: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)]
    lead: Annotated[int, Field(ge=0)] = 0
    """Actions executed while a chunk is made, see `rollout.run_episodes`."""
    static: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2)]
    policies: list[str] = []
    tuned: str = ""
    """Calibration file in the policy folder: its `static:tuned` is the baseline."""
    calibrated: dict[str, str] = {}
    sizes: dict[str, StudySize]


def run_horizon_study(
    config: Path,
    out: Path,
    report: Callable[[str], None] = print,
    *,
    size: str = "full",
    processes: int = 1,
    plot_only: bool = False,
) -> list[Measured]:
    """Runs what is missing in `out` and writes table, figure and finding there.

    Raises ConfigError for a wrong study file, before anything runs, and, with `plot_only`, where
    anything is missing: rules are compared on the same episodes, so all have to be there.
    """
    study = read_horizon_study(config)
    if size not in study.sizes:
        raise ConfigError(f"{config}: sizes has no {size!r}, only {', '.join(study.sizes)}")
    chosen = study.sizes[size]
    folder = _policy_folder(study.policy)
    rules = _rules(study, folder)
    horizons = _tuned_horizons(folder / study.tuned, chosen.tasks) if study.tuned else {}
    policy_id = policy_under_test(str(folder)).policy_id
    blocks = [
        (study.first_seed + at, min(BLOCK, chosen.episodes - at))
        for at in range(0, chosen.episodes, BLOCK)
    ]
    keys: list[Key] = [
        {
            "policy_id": policy_id,
            "folder": str(folder),
            "task": task,
            "rule": rule,
            "disturbance": disturbance,
            "lead": study.lead,
            "first_seed": first_seed,
            "episodes": episodes,
        }
        for task in chosen.tasks
        for disturbance in study.disturbances
        for rule in rules.values()
        for first_seed, episodes in blocks
    ]

    def tell(left: int, key: Key, result: Any) -> None:
        ok = np.mean(result["success"])
        name = next(name for name, rule in rules.items() if rule == key["rule"])
        report(f"{key['task']} {name} sigma={key['disturbance']:g}: {ok:.0%} ({left} cells left)")

    code = source_version((*EPISODES, "lab/horizons/study.py"))
    file = out / "cells.jsonl"
    cells = iter(
        _kept(file, keys, code, report)
        if plot_only
        else run_cells(file, keys, _run_cell, code=code, processes=processes, finished=tell)
    )
    rows = [
        [
            {rule: _joined([next(cells) for _ in blocks]) for rule in rules}
            for _ in study.disturbances
        ]
        for _ in chosen.tasks
    ]
    results = []
    for disturbance, of_tasks in zip(study.disturbances, zip(*rows, strict=True), strict=True):
        outcomes = {rule: _outcomes([row[rule] for row in of_tasks]) for rule in rules}
        static = {f"static:{h}": outcomes.pop(f"static:{h}") for h in study.static}
        tuned = outcomes.pop(TUNED, None)
        results.append(
            Measured(disturbance, tuple(chosen.tasks), static, outcomes, tuned, horizons)
        )
    write_table(out / "horizon.csv", results)
    text = finding(results)
    (out / "finding.md").write_text(text)
    from kairos_ros.lab.horizons.figure import write_figure

    write_figure(out / "horizon.png", results)
    report(text)
    return results


def _kept(file: Path, keys: list[Key], code: str, report: Callable[[str], None]) -> list[Any]:
    """Results of cells that have run. Raises ConfigError where one has not."""
    results = read_cells(file)
    names = [cell_name(key) for key in keys]
    if missing := sum(name not in results for name in names):
        raise ConfigError(f"{missing} of {len(keys)} cells are not in {file}; run them first")
    if outdated := sum(results[name].code != code for name in names):
        report(f"{outdated} cells were run by other code than this.")
    return [results[name].value for name in names]


def read_horizon_study(config: Path) -> HorizonStudy:
    """Raises FaultyFileError with line, column and field of everything that is wrong, ConfigError
    for a file that cannot be read, and for unknown tasks and policies."""
    study = read_model(config, read_document(config), HorizonStudy)
    for size in study.sizes.values():
        if unknown := [task for task in size.tasks if task not in SCENES]:
            raise ConfigError(f"{config}: no task {unknown[0]!r}; known are {', '.join(SCENES)}")
    for name in study.policies:
        parse_horizon(name)
    return study


def write_table(path: Path, results: list[Measured]) -> None:
    """One row per disturbance, task (`all`: over all) and rule."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for measured in results:
            for rule, outcomes in measured.rules.items():
                for task, part in [("all", outcomes), *_parts(measured.tasks, outcomes)]:
                    ok, n = int(part.success.sum()), part.success.size
                    numbers = (part.rate, *wilson_95(ok, n), part.horizon, *horizon_interval(part))
                    row = [measured.disturbance, task, rule, n, ok]
                    row += [f"{number:.4f}" for number in (*numbers, part.rounds_per_episode)]
                    writer.writerow(row)


def _parts(tasks: tuple[str, ...], outcomes: Outcomes) -> list[tuple[str, Outcomes]]:
    return [
        (
            task,
            Outcomes(
                outcomes.success[i : i + 1],
                outcomes.rounds[i : i + 1],
                outcomes.actions[i : i + 1],
            ),
        )
        for i, task in enumerate(tasks)
    ]


def _rules(study: HorizonStudy, folder: Path) -> dict[str, str]:
    """Name in the tables -> what the cell runs; a calibration is named by its content."""
    rules = {f"static:{h}": f"static:{h}" for h in study.static}
    rules |= {name: name for name in study.policies}
    named = {TUNED: (TUNED, study.tuned)} if study.tuned else {}
    named |= {label: (CALIBRATED, name) for label, name in study.calibrated.items()}
    for label, (policy, name) in named.items():
        file = folder / name
        calibration = read_calibration(file)
        calibration.require_policy(policy_under_test(str(folder)).policy_id)
        parse_horizon(policy, calibration.policies())
        rules[label] = f"{policy}@{name}@{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
    return rules


def _tuned_horizons(file: Path, tasks: list[str]) -> dict[str, int]:
    static = read_calibration(file).static
    assert static, "static:tuned was parsed before"
    of = {name: h for names, h in static.tasks.items() for name in names}
    return {task: of.get(task, static.general) for task in tasks}


def _policy_folder(policy: str) -> Path:
    """As given, or of the installed package."""
    folder = Path(policy)
    if not folder.is_dir():
        folder = share() / policy
    if not folder.is_dir():
        raise ConfigError(f"policy {policy!r} is no folder, neither here nor in {share()}")
    return folder


def _run_cell(key: Key) -> dict[str, list[int]]:
    from kairos_ros.lab.training.rollout import run_episodes

    seeds = range(key["first_seed"], key["first_seed"] + key["episodes"])
    episodes = run_episodes(
        policy_under_test(key["folder"]),
        key["task"],
        seeds,
        _policy(key["folder"], key["rule"]),
        arms(key["task"], key["episodes"]),
        key["disturbance"],
        key["lead"],
    )
    return {
        "success": [int(episode.success) for episode in episodes],
        "rounds": [episode.rounds for episode in episodes],
        "actions": [episode.actions for episode in episodes],
    }


def _policy(folder: str, rule: str) -> HorizonPolicy:
    name, _, file = rule.partition("@")
    calibration = read_calibration(Path(folder) / file.partition("@")[0]) if file else None
    return parse_horizon(name, calibration.policies() if calibration else None)


def _joined(blocks: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    return {name: [x for block in blocks for x in block[name]] for name in blocks[0]}


def _outcomes(rows: list[dict[str, list[int]]]) -> Outcomes:
    return Outcomes(
        np.array([row["success"] for row in rows], bool),
        np.array([row["rounds"] for row in rows]),
        np.array([row["actions"] for row in rows]),
    )
