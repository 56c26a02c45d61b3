"""`kairos study surprise`: success and rounds with and without a surprise rule, on paired episodes.

The hand is pushed aside in every episode, or in none; both sides of a pair have the same scene, the
same push and the same noise of the policy. Finished cells are kept in `cells.jsonl`; then
`surprise.csv` (a row per push, horizon policy and task, and one over all tasks) and `finding.md`
are written from them.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import CALIBRATED, DEFAULT_SURPRISED_HORIZON, TUNED
from kairos_ros.core.horizons.surprise import parse_surprise
from kairos_ros.document.faults import read_document, read_model
from kairos_ros.lab.horizons.cells import (
    BLOCK,
    CODE,
    HAND,
    joined,
    named_rules,
    policy_folder,
    run_cell,
)
from kairos_ros.lab.horizons.dominance import Outcomes, difference, task_gap
from kairos_ros.lab.horizons.study import StudySize
from kairos_ros.lab.metrics.cells import Key, kept_results, run_cells, source_version
from kairos_ros.lab.training.bench import policy_under_test
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

COLUMNS = (
    "push_m", "policy", "task", "episodes", "success_without", "success_with", "difference",
    "difference_low", "difference_high", "rounds_without", "rounds_with", "surprises_per_episode",
)  # fmt: skip


class SurpriseStudy(BaseModel):
    """The content of the study file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["surprise"] = "surprise"
    question: str
    policy: str
    first_seed: Annotated[int, Field(ge=0)]
    warm_up_seed: Annotated[int, Field(ge=0)]
    lead: Annotated[int, Field(ge=0)]
    horizons: str
    """Calibration file in the policy folder."""
    policies: Annotated[list[str], Field(min_length=1)]
    """Horizon policies, with and without the rule each."""
    surprise: str
    surprised_horizon: Annotated[int, Field(ge=0)] = DEFAULT_SURPRISED_HORIZON
    """Most actions of a chunk that a surprised arm asked for; 0: as ever."""
    pushes_m: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)]
    push_periods: Annotated[int, Field(ge=1)]
    sizes: dict[str, StudySize]


def run_surprise_study(
    config: Path,
    out: Path,
    report: Callable[[str], None] = print,
    *,
    policy: str = "",
    size: str = "full",
    processes: int = 1,
    plot_only: bool = False,
) -> None:
    """Runs what is missing in `out`; writes table and finding there.

    policy: folder; empty: the study's. Raises ConfigError for a wrong study file, before anything
    runs, and, with `plot_only`, where a cell is missing.
    """
    study = read_model(config, read_document(config), SurpriseStudy)
    if size not in study.sizes:
        raise ConfigError(f"{config}: sizes has no {size!r}, only {', '.join(study.sizes)}")
    chosen = study.sizes[size]
    if unknown := [task for task in chosen.tasks if task not in SCENES]:
        raise ConfigError(f"{config}: no task {unknown[0]!r}; known are {', '.join(SCENES)}")
    parse_surprise(study.surprise).watch(HAND)
    folder = policy_folder(policy or study.policy)
    rules = _rules(study, folder)
    keys = _keys(study, chosen, folder, rules)
    file = out / "cells.jsonl"
    code = source_version(CODE)
    if plot_only:
        results = kept_results(file, keys, code, report)
    else:
        results = run_cells(
            file,
            keys,
            run_cell,
            code=code,
            processes=processes,
            finished=lambda left, key, row: report(
                f"{key['task']} {key['rule'].partition('@')[0]} push={key['push_m']:g} "
                f"{key['surprise'] or 'nothing watched'}: {np.mean(row['success']):.0%} "
                f"({left} cells left)"
            ),
        )
    cells = iter(results)
    blocks = len(keys) // (len(chosen.tasks) * len(study.pushes_m) * len(rules) * 2)
    rows: list[list[Any]] = []
    text = []
    for push_m in study.pushes_m:
        table = []
        for name in rules:
            sides = [
                [joined([next(cells) for _ in range(blocks)]) for _ in chosen.tasks]
                for _ in range(2)
            ]
            rows += _rows(push_m, name, chosen.tasks, *sides)
            table.append(_line(name, *sides))
        text += [_head(push_m, study, len(chosen.tasks), chosen.episodes), *table, ""]
    _write(out / "surprise.csv", rows)
    finding = "\n".join([*text, f"`kairos study {config.stem} --size {size}`", ""])
    (out / "finding.md").write_text(finding)
    report(finding)


def _rules(study: SurpriseStudy, folder: Path) -> dict[str, str]:
    """Name in the tables -> what the cell runs; a calibration is named by its content."""
    named = {n: (n, study.horizons) for n in study.policies if n in (TUNED, CALIBRATED)}
    plain = [name for name in study.policies if name not in named]
    rules = named_rules(folder, plain, named)
    return {name: rules[name] for name in study.policies}


def _keys(
    study: SurpriseStudy, chosen: StudySize, folder: Path, rules: Mapping[str, str]
) -> list[Key]:
    """In the order of the tables: pushes, horizon policies, without and with, tasks, blocks."""
    policy_id = policy_under_test(str(folder)).policy_id
    return [
        {
            "policy_id": policy_id,
            "folder": str(folder),
            "task": task,
            "rule": rule,
            "disturbance": 0.0,
            "lead": study.lead,
            "push_m": push_m,
            "knock_m_s": 0.0,
            "push_periods": study.push_periods,
            "surprise": surprise,
            "warm_up_seed": study.warm_up_seed,
            "surprised_horizon": study.surprised_horizon,
            "first_seed": study.first_seed + at,
            "episodes": min(BLOCK, chosen.episodes - at),
        }
        for push_m in study.pushes_m
        for rule in rules.values()
        for surprise in ("", study.surprise)
        for task in chosen.tasks
        for at in range(0, chosen.episodes, BLOCK)
    ]


Side = Sequence[Mapping[str, list[int]]]
"""One dictionary per task: of every episode."""


def _outcomes(side: Side) -> Outcomes:
    return Outcomes(
        np.array([row["success"] for row in side], bool),
        np.array([row["rounds"] for row in side]),
        np.array([row["actions"] for row in side]),
    )


def _surprises(side: Side) -> float:
    return float(np.mean([row["surprises"] for row in side]))


def _head(push_m: float, study: SurpriseStudy, tasks: int, episodes: int) -> str:
    what = f"The hand is pushed by {100 * push_m:g} cm in {study.push_periods} control periods"
    return "\n".join(
        [
            f"## {what if push_m else 'Nobody pushes'}: {tasks} tasks, {episodes} episodes each",
            "",
            f"| horizon policy | success % without, with `{study.surprise}` | points (95 %) | "
            "rounds per episode without, with | difference (95 %) | asked early per episode |",
            "|---|---|---|---|---|---|",
        ]
    )


def _line(name: str, without: Side, with_: Side) -> str:
    before, after = _outcomes(without), _outcomes(with_)
    gain = difference(after, before)
    low, high = gain.success_95
    fewer, more = gain.rounds_95
    return (
        f"| `{name}` | {100 * before.rate:.1f}, {100 * after.rate:.1f} | "
        f"{100 * gain.success:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) | "
        f"{before.rounds_per_episode:.2f}, {after.rounds_per_episode:.2f} | "
        f"{gain.rounds:+.2f} ({fewer:+.2f} to {more:+.2f}) | {_surprises(with_):.2f} |"
    )


def _rows(
    push_m: float, name: str, tasks: Sequence[str], without: Side, with_: Side
) -> list[list[Any]]:
    """One over all tasks, then one per task."""
    before, after = _outcomes(without), _outcomes(with_)
    gain = difference(after, before)
    rows = [
        [push_m, name, "all", before.success.size, before.rate, after.rate, gain.success,
         *gain.success_95, before.rounds_per_episode, after.rounds_per_episode, _surprises(with_)]
    ]  # fmt: skip
    for at, task in enumerate(tasks):
        points, interval = task_gap(after, before, at)
        rows.append(
            [push_m, name, task, before.success[at].size, before.success[at].mean(),
             after.success[at].mean(), points, *interval, before.rounds[at].mean(),
             after.rounds[at].mean(), float(np.mean(with_[at]["surprises"]))]
        )  # fmt: skip
    return rows


def _write(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([f"{x:.4f}" if isinstance(x, float) else x for x in row])
