"""`kairos study surprise`: success and rounds with and without a surprise rule, on paired episodes.

The hand is pushed aside in every episode, or in none; both sides of a pair have the same scene, the
same push and the same noise of the policy. Finished cells are kept in `cells.jsonl`; then
`cells.csv` (a row per push, horizon policy and task, and one over all tasks) and `finding.md`
are written from them.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import CALIBRATED, TUNED
from kairos_ros.core.horizons.surprise import parse_surprise
from kairos_ros.document.faults import read_document, read_model
from kairos_ros.lab.horizons.cells import HAND, named_rules, policy_folder
from kairos_ros.lab.horizons.dominance import difference, task_gap
from kairos_ros.lab.horizons.study import (
    Condition,
    Episodes,
    EpisodeStudy,
    outcomes_of,
    run_conditions,
    with_surprise,
)
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

COLUMNS = (
    "push_m", "policy", "task", "episodes", "success_without", "success_with", "difference",
    "difference_low", "difference_high", "rounds_without", "rounds_with", "surprises_per_episode",
)  # fmt: skip


class SurpriseStudy(EpisodeStudy):
    """The content of the study file."""

    kind: Literal["surprise"] = "surprise"
    lead: Annotated[int, Field(ge=0)]
    horizons: str
    """Calibration file in the policy folder."""
    policies: Annotated[list[str], Field(min_length=1)]
    """Horizon policies, with and without the rule each."""
    surprise: str
    pushes_m: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)]
    push_periods: Annotated[int, Field(ge=1)]

    @property
    def conditions(self) -> dict[float, Condition]:
        """By how far the hand is pushed."""
        return {
            push_m: Condition(
                name=f"the hand is pushed by {100 * push_m:g} cm" if push_m else "nobody pushes",
                lead=self.lead,
                push_m=push_m,
                push_periods=self.push_periods,
            )
            for push_m in self.pushes_m
        }


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
    conditions = study.conditions
    watched = {with_surprise(name): (rule, study.surprise) for name, (rule, _) in rules.items()}
    ran = run_conditions(
        study, [*conditions.values()], rules | watched, chosen, folder, out, report,
        processes=processes, plot_only=plot_only,
    )  # fmt: skip
    rows: list[list[Any]] = []
    text = []
    for push_m, condition in conditions.items():
        table = []
        for name in rules:
            sides = [
                [ran[condition.name, task, rule] for task in chosen.tasks]
                for rule in (name, with_surprise(name))
            ]
            rows += _rows(push_m, name, chosen.tasks, *sides)
            table.append(_line(name, *sides))
        text += [_head(push_m, study, len(chosen.tasks), chosen.episodes), *table, ""]
    _write(out / "cells.csv", rows)
    finding = "\n".join([*text, f"`kairos study {config.stem} --size {size}`", ""])
    (out / "finding.md").write_text(finding)
    report(finding)


def _rules(study: SurpriseStudy, folder: Path) -> dict[str, tuple[str, str]]:
    """Name in the tables -> what the cell runs, without a surprise rule; a calibration is named by
    its content."""
    named = {n: (n, study.horizons) for n in study.policies if n in (TUNED, CALIBRATED)}
    plain = [name for name in study.policies if name not in named]
    rules = named_rules(folder, plain, named)
    return {name: (rules[name], "") for name in study.policies}


Side = Sequence[Episodes]
"""One per task."""


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
    before, after = outcomes_of(without), outcomes_of(with_)
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
    before, after = outcomes_of(without), outcomes_of(with_)
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
