"""`kairos study horizon`: success and executed horizon of every horizon policy, on paired episodes.

Each cell is a few episodes of one task under one rule and one disturbance. Finished cells are kept
in `cells.jsonl`; then `horizon.csv` (tidy, a row per task and rule and one over all tasks),
`horizon.png` and `finding.md` are written from them.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import CALIBRATED, TUNED, parse_horizon
from kairos_ros.document.faults import read_document, read_model
from kairos_ros.lab.horizons.cells import BLOCK, joined, named_rules, policy_folder, run_cell
from kairos_ros.lab.horizons.dominance import Measured, Outcomes, horizon_interval
from kairos_ros.lab.horizons.finding import finding
from kairos_ros.lab.horizons.matched import beside_paper
from kairos_ros.lab.metrics.cells import Key, cell_name, read_cells, run_cells, source_version
from kairos_ros.lab.training.bench import EPISODES, policy_under_test
from kairos_ros.recording.runs.summary import wilson_95
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.serving.calibration_file import read_calibration

COLUMNS = (
    "disturbance", "task", "rule", "episodes", "successes", "success", "success_low",
    "success_high", "mean_executed_horizon", "horizon_low", "horizon_high", "rounds_per_episode",
)  # fmt: skip


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StudySize(_Section):
    """How much is run."""

    episodes: Annotated[int, Field(ge=2, le=100_000)]
    """Of each task, rule and disturbance."""
    tasks: list[str] = list(SCENES)


class HorizonStudy(_Section):
    """The content of the study file."""

    kind: Literal["horizon"] = "horizon"
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
    paper: Annotated[dict[str, str], Field(max_length=2)] = {}
    """What 000 gives for `matched accuracy` and `matched horizon`; then both are written, too."""
    differs: str = ""
    """From 000's experiment."""
    sizes: dict[str, StudySize]


def run_horizon_study(
    config: Path,
    out: Path,
    report: Callable[[str], None] = print,
    *,
    policy: str = "",
    size: str = "full",
    processes: int = 1,
    plot_only: bool = False,
) -> list[Measured]:
    """Runs what is missing in `out` and writes table, figure and finding there.

    policy: folder; empty: the study's.

    Raises ConfigError for a wrong study file, before anything runs, and, with `plot_only`, where
    anything is missing: rules are compared on the same episodes, so all have to be there.
    """
    study = read_horizon_study(config)
    if size not in study.sizes:
        raise ConfigError(f"{config}: sizes has no {size!r}, only {', '.join(study.sizes)}")
    chosen = study.sizes[size]
    folder = policy_folder(policy or study.policy)
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

    code = source_version((*EPISODES, "lab/horizons/cells.py"))
    file = out / "cells.jsonl"
    cells = iter(
        _kept(file, keys, code, report)
        if plot_only
        else run_cells(file, keys, run_cell, code=code, processes=processes, finished=tell)
    )
    rows = [
        [
            {rule: joined([next(cells) for _ in blocks]) for rule in rules}
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
    if study.paper:
        text += beside_paper(results[0], study.paper, study.differs)
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
    rules = [*(f"static:{h}" for h in study.static), *study.policies]
    named = {TUNED: (TUNED, study.tuned)} if study.tuned else {}
    named |= {label: (CALIBRATED, name) for label, name in study.calibrated.items()}
    return named_rules(folder, rules, named)


def _tuned_horizons(file: Path, tasks: list[str]) -> dict[str, int]:
    static = read_calibration(file).static
    assert static, "static:tuned was parsed before"
    of = {name: h for names, h in static.tasks.items() for name in names}
    return {task: of.get(task, static.general) for task in tasks}


def _outcomes(rows: list[dict[str, list[int]]]) -> Outcomes:
    return Outcomes(
        np.array([row["success"] for row in rows], bool),
        np.array([row["rounds"] for row in rows]),
        np.array([row["actions"] for row in rows]),
    )
