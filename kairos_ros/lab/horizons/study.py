"""`kairos study horizon`: success and executed horizon of every horizon policy, on paired episodes.

Each cell is a few episodes of one task under one rule and one condition. Finished cells are kept
in `cells.jsonl`; then `cells.csv` (tidy, a row per task and rule and one over all tasks),
`figure.png` and `finding.md` are written from them.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import (
    CALIBRATED,
    DEFAULT_SURPRISED_HORIZON,
    SLACK,
    TUNED,
    parse_horizon,
)
from kairos_ros.core.horizons.surprise import parse_surprise
from kairos_ros.document.faults import read_document, read_model
from kairos_ros.engine.policies.calibration_file import read_calibration
from kairos_ros.lab.horizons.cells import (
    BLOCK,
    CODE,
    HAND,
    joined,
    named_rules,
    policy_folder,
    run_cell,
)
from kairos_ros.lab.horizons.dominance import Measured, Outcomes, horizon_interval
from kairos_ros.lab.horizons.finding import finding
from kairos_ros.lab.horizons.matched import beside_paper
from kairos_ros.lab.metrics.cells import Key, cell_name, kept_results, run_cells, source_version
from kairos_ros.lab.training.bench import policy_under_test
from kairos_ros.recording.runs.summary import wilson_95
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

COLUMNS = (
    "condition", "task", "rule", "episodes", "successes", "success", "success_low",
    "success_high", "mean_executed_horizon", "horizon_low", "horizon_high", "rounds_per_episode",
)  # fmt: skip
Episodes = Mapping[str, list[int]]
"""What came of every episode of a task: see `cells.run_cell`."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StudySize(_Section):
    """How much is run."""

    episodes: Annotated[int, Field(ge=2, le=100_000)]
    """Of each task, rule and condition."""
    tasks: list[str] = list(SCENES)


class Condition(_Section):
    """Under which episodes run."""

    name: Annotated[str, Field(min_length=1)]
    """In titles and tables: `nothing happens`."""
    lead: Annotated[int, Field(ge=0)] = 0
    """Actions executed while a chunk is made, see `rollout.run_episodes`."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """On executed hand motions, standard deviation, action units."""
    push_m: Annotated[float, Field(ge=0)] = 0.0
    """The hand is pushed aside so far, once per episode."""
    push_periods: Annotated[int, Field(ge=1)] = 5
    knock_m_s: Annotated[float, Field(ge=0)] = 0.0
    """The loose object is knocked away so fast, once per episode."""
    tasks: list[str] = []
    """Those that have what the condition needs; empty: the size's."""
    rules: list[str] = []
    """Empty: all."""


class EpisodeStudy(_Section):
    """What the files of studies say of the episodes that are run."""

    question: str
    policy: str
    first_seed: Annotated[int, Field(ge=0)]
    surprised_horizon: Annotated[int, Field(ge=0)] = DEFAULT_SURPRISED_HORIZON
    """Most actions of a chunk that a surprised arm asked for; 0: no limit."""
    warm_up_seed: Annotated[int, Field(ge=0)] = 0
    """Of the episodes in which the surprise rule learns how the arm responds, one per task."""
    sizes: dict[str, StudySize]


class HorizonStudy(EpisodeStudy):
    """The content of the study file."""

    kind: Literal["horizon"] = "horizon"
    conditions: Annotated[list[Condition], Field(min_length=1)]
    static: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2)]
    policies: list[str] = []
    tuned: str = ""
    """Calibration file in the policy folder: its `static:tuned` is the baseline; `static:slack`
    among the policies is its, too."""
    calibrated: dict[str, str] = {}
    surprise: str = ""
    """A surprise rule, and the rules that run with it, too: as `RULE + surprise` in the tables."""
    watched: list[str] = []
    paper: Annotated[dict[str, str], Field(max_length=2)] = {}
    """Theirs of `matched accuracy` and `matched horizon`; then both are written, too."""
    differs: str = ""
    """From the experiment of Dai et al."""


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
    rows = run_conditions(
        study, study.conditions, rules, chosen, folder, out, report,
        processes=processes, plot_only=plot_only,
    )  # fmt: skip
    results = []
    for condition in study.conditions:
        tasks = _tasks(condition, chosen)
        outcomes = {
            rule: outcomes_of([rows[condition.name, task, rule] for task in tasks])
            for rule in condition.rules or rules
        }
        statics = [f"static:{h}" for h in study.static]
        static = {name: outcomes.pop(name) for name in statics if name in outcomes}
        tuned = outcomes.pop(TUNED, None)
        horizons = _tuned_horizons(folder / study.tuned, tasks) if study.tuned else {}
        results.append(Measured(condition.name, tuple(tasks), static, outcomes, tuned, horizons))
    write_table(out / "cells.csv", results)
    text = finding(results)
    if study.paper:
        text += beside_paper(results[0], study.paper, study.differs)
    (out / "finding.md").write_text(text)
    from kairos_ros.lab.horizons.figure import write_figure

    write_figure(out / "figure.png", results)
    report(text)
    return results


def run_conditions(
    study: EpisodeStudy,
    conditions: Sequence[Condition],
    rules: Mapping[str, tuple[str, str]],
    size: StudySize,
    folder: Path,
    out: Path,
    report: Callable[[str], None],
    *,
    processes: int,
    plot_only: bool,
) -> dict[tuple[str, str, str], Episodes]:
    """Condition, task and rule -> its episodes. What is missing in `out` is run.

    rules: name in the tables -> what the cell runs, and the surprise rule beside it. folder: of the
    policy. Raises ConfigError, with `plot_only`, where anything is missing.
    """
    cells = {
        (condition.name, task, rule): _keys(study, condition, task, rules[rule], folder, size)
        for condition in conditions
        for task in _tasks(condition, size)
        for rule in condition.rules or rules
    }
    keys = [key for of_cell in cells.values() for key in of_cell]
    names = {cell_name(key): name for name, of_cell in cells.items() for key in of_cell}

    def tell(left: int, key: Key, result: Any) -> None:
        condition, task, rule = names[cell_name(key)]
        ok = np.mean(result["success"])
        report(f"{task} {rule}, {condition}: {ok:.0%} ({left} cells left)")

    code = source_version(CODE)
    file = out / "cells.jsonl"
    ran = iter(
        kept_results(file, keys, code, report)
        if plot_only
        else run_cells(file, keys, run_cell, code=code, processes=processes, finished=tell)
    )
    return {name: joined([next(ran) for _ in of_cell]) for name, of_cell in cells.items()}


def read_horizon_study(config: Path) -> HorizonStudy:
    """Raises FaultyFileError with line, column and field of everything that is wrong, ConfigError
    for a file that cannot be read, and for unknown tasks and policies."""
    study = read_model(config, read_document(config), HorizonStudy)
    for tasks in (
        *(size.tasks for size in study.sizes.values()),
        *(condition.tasks for condition in study.conditions),
    ):
        if unknown := [task for task in tasks if task not in SCENES]:
            raise ConfigError(f"{config}: no task {unknown[0]!r}; known are {', '.join(SCENES)}")
    for name in study.policies:
        if name != SLACK or not study.tuned:  # that one comes from the calibration
            parse_horizon(name)
    if study.surprise:
        parse_surprise(study.surprise).watch(HAND)
    names = [condition.name for condition in study.conditions]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{config}: two conditions have the name {twice[0]!r}")
    known = [*_unwatched(study), *map(with_surprise, study.watched)]
    asked = [*study.watched, *(rule for of in study.conditions for rule in of.rules)]
    if strange := [name for name in asked if name not in known]:
        raise ConfigError(f"{config}: no rule {strange[0]!r}; known are {', '.join(known)}")
    statics = {f"static:{h}" for h in study.static}
    for of in study.conditions:
        if of.rules and not statics & set(of.rules):
            raise ConfigError(
                f"{config}: condition {of.name!r}: rules needs one of {', '.join(sorted(statics))}"
            )
    if study.watched and not study.surprise:
        raise ConfigError(f"{config}: watched needs a surprise rule; give surprise")
    return study


def write_table(path: Path, results: list[Measured]) -> None:
    """One row per condition, task (`all`: over all) and rule."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for measured in results:
            for rule, outcomes in measured.rules.items():
                for task, part in [("all", outcomes), *_parts(measured.tasks, outcomes)]:
                    ok, n = int(part.success.sum()), part.success.size
                    numbers = (part.rate, *wilson_95(ok, n), part.horizon, *horizon_interval(part))
                    row = [measured.condition, task, rule, n, ok]
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


def with_surprise(rule: str) -> str:
    """Name in the tables of a rule that is watched."""
    return f"{rule} + surprise"


def _unwatched(study: HorizonStudy) -> list[str]:
    statics = (f"static:{h}" for h in study.static)
    tuned = [TUNED] if study.tuned else []
    return [*statics, *study.policies, *tuned, *study.calibrated]


def _rules(study: HorizonStudy, folder: Path) -> dict[str, tuple[str, str]]:
    """Name in the tables -> what the cell runs, and the surprise rule beside it; a calibration is
    named by its content."""
    of_tuning = [TUNED, *(one for one in study.policies if one == SLACK)] if study.tuned else []
    named = {name: (name, study.tuned) for name in of_tuning}
    named |= {label: (CALIBRATED, name) for label, name in study.calibrated.items()}
    plain = [name for name in _unwatched(study) if name not in named]
    rules = named_rules(folder, plain, named)
    return {name: (rule, "") for name, rule in rules.items()} | {
        with_surprise(name): (rules[name], study.surprise) for name in study.watched
    }


def _tasks(condition: Condition, size: StudySize) -> list[str]:
    """In the order of the size, and of its tasks only, so that a quick look stays quick."""
    return [task for task in size.tasks if not condition.tasks or task in condition.tasks]


def _keys(
    study: EpisodeStudy,
    condition: Condition,
    task: str,
    rule: tuple[str, str],
    folder: Path,
    size: StudySize,
) -> list[Key]:
    return [
        {
            "policy_id": policy_under_test(str(folder)).policy_id,
            "folder": str(folder),
            "task": task,
            "rule": rule[0],
            "surprise": rule[1],
            "warm_up_seed": study.warm_up_seed if rule[1] else 0,
            "surprised_horizon": study.surprised_horizon if rule[1] else 0,
            "disturbance": condition.noise,
            "lead": condition.lead,
            "push_m": condition.push_m,
            "push_periods": condition.push_periods,
            "knock_m_s": condition.knock_m_s,
            "first_seed": study.first_seed + at,
            "episodes": min(BLOCK, size.episodes - at),
        }
        for at in range(0, size.episodes, BLOCK)
    ]


def _tuned_horizons(file: Path, tasks: list[str]) -> dict[str, int]:
    static = read_calibration(file).static
    assert static, "static:tuned was parsed before"
    of = {name: h for names, h in static.tasks.items() for name in names}
    return {task: of.get(task, static.general) for task in tasks}


def outcomes_of(rows: Sequence[Episodes]) -> Outcomes:
    """rows: one per task."""
    return Outcomes(
        np.array([row["success"] for row in rows], bool),
        np.array([row["rounds"] for row in rows]),
        np.array([row["actions"] for row in rows]),
    )
