"""Horizons from what a fleet recorded: outcomes of tasks that ran under one static horizon each.

`explore:0.1` gives a tenth of a fleet's tasks a static horizon, drawn once per task, so that the
tasks of every horizon are a random sample. Tasks whose horizons were decided round by round do not
count, even where all were alike: such tasks are mostly those that soon succeeded.

A longer horizon is planned where it is shown to lose less success than allowed to the most
successful one; the tasks of two horizons are paired in the order in which they ran, and the test is
that of `kairos calibrate` in simulation.
"""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan, StaticHorizons
from kairos_ros.core.horizons.evidence import PairedOutcomes
from kairos_ros.core.horizons.policies import stays
from kairos_ros.core.pipeline import Component, TaskState
from kairos_ros.core.wire_check import printable
from kairos_ros.document.text_file import read_text
from kairos_ros.recording.runs.run import FleetRun, RoundRecord, TaskRecord
from kairos_ros.recording.runs.summary import wilson_95
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

KINDS = {instruction: scene for scene, instruction in SCENES.items()}
"""Instruction of a scene -> its kind: a goal may name the one or the other."""
TOLD, JUDGED = "told", "judged"
LEAST = 30
"""Tasks of one horizon before it is looked at."""
SHOWN = 3
"""Kinds of tasks of which an error says what is missing."""
COLUMNS, SAID = ("robot", "task", "success"), {"0": False, "1": True}
"""Of an operator's file."""
Labels = Mapping[tuple[str, str], bool]
"""Robot and task, as session and id with a slash between -> whether it succeeded."""


@dataclass(slots=True)
class Recorded:
    """Outcomes by kind of task and static horizon, in the order in which the tasks ran."""

    policy: str = ""
    chunk_size: int = 0
    tasks: dict[str, dict[int, list[bool]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    """Tasks that say nothing of a static horizon, by reason."""
    others: Counter[str] = field(default_factory=Counter)
    """Tasks of other policies than the wanted one, by policy."""
    unlabelled: set[tuple[str, str]] = field(default_factory=set)
    """Robots and tasks of labels that were found for no task."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A longer horizon against the reference."""

    horizon: int
    outcomes: PairedOutcomes
    evidence: float
    needed: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the outcomes of one kind of task carry."""

    counts: Mapping[int, tuple[int, int]]
    """Horizon -> successes, tasks."""
    reference: int = 0
    """The horizon whose success is surest; 0: too few tasks of any."""
    horizon: int = 0
    """The longest one that holds against it; the reference, where none does."""
    compared: tuple[Compared, ...] = ()

    @property
    def missing(self) -> str:
        """Why there is no plan; empty: there is one."""
        if not self.reference:
            most = max((tasks for _, tasks in self.counts.values()), default=0)
            return f"{most} tasks of one horizon at most, {LEAST} are needed"
        if not any(successes for successes, _ in self.counts.values()):
            return "no task succeeded; where robots cannot tell, say --success judged or a file"
        return ""


def read_labels(file: Path) -> Labels:
    """An operator's word on tasks: a CSV with the columns robot, task and success (0 or 1).

    Raises ConfigError, also for a task that has both.
    """
    text = read_text(file).removeprefix("\ufeff")  # as spreadsheets begin files
    rows = csv.DictReader(text.splitlines())
    labels: dict[tuple[str, str], bool] = {}
    try:
        named = [name.strip() for name in rows.fieldnames or ()]
        if missing := [name for name in COLUMNS if name not in named]:
            raise ConfigError(f"{file}: no column {missing[0]!r}; it needs {','.join(COLUMNS)}")
        rows.fieldnames = named
        for row in rows:
            robot, task, said = ((row[name] or "").strip() for name in COLUMNS)
            if said not in SAID:
                raise ConfigError(
                    f"{file}:{rows.line_num}: success must be 0 or 1, not {printable(said)!r}"
                )
            if labels.setdefault((robot, task), SAID[said]) != SAID[said]:
                raise ConfigError(
                    f"{file}:{rows.line_num}: {printable(robot)}, {printable(task)} has success 0 "
                    "and 1; keep one row"
                )
    except csv.Error as error:
        raise ConfigError(f"{file}: {error}") from None
    return labels


def read_outcomes(
    runs: Iterable[FleetRun],
    success: str = TOLD,
    labels: Labels | None = None,
    wanted: Callable[[str], bool] = lambda policy: True,
) -> Recorded:
    """Outcomes of the tasks in `runs`. success: `told` by the robot, `judged` by the monitor's last
    word. labels: an operator's word, which decides instead; other tasks are left out. wanted: a
    policy whose tasks count.

    Raises ConfigError where two policies are wanted.
    """
    recorded = Recorded(unlabelled=set(labels or ()))
    known: set[tuple[str, str]] = set()
    for run in runs:
        said = _judged(run) if success == JUDGED else {}
        rounds: dict[tuple[str, str], list[RoundRecord]] = {}
        for round_ in run.rounds:
            rounds.setdefault((round_.robot, round_.task), []).append(round_)
        for task in sorted(run.tasks, key=lambda task: task.given_s):
            key = task.robot, task.task
            recorded.unlabelled.discard(key)
            if key in known:
                recorded.left_out["in another of the bags, too"] += 1
                continue
            if task.policy and not wanted(task.policy):
                recorded.others[task.policy] += 1
                continue
            told = task.success if success == TOLD else said.get(key)
            why = _take(recorded, task, rounds.get(key, ()), labels.get(key) if labels else told)
            if why:
                recorded.left_out[why] += 1
            else:
                known.add(key)
    return recorded


def _take(
    recorded: Recorded, task: TaskRecord, rounds: Sequence[RoundRecord], success: bool | None
) -> str:
    """Counts one task; why not, where it does not."""
    answered = [one for one in rounds if one.horizon]
    if not task.finished:
        return "canceled or lost"
    if not answered or not task.policy:
        return "without its rounds"
    if success is None:
        return "without a word on success"
    if recorded.policy not in ("", task.policy):
        raise ConfigError(
            f"tasks of two policies, {recorded.policy} and {task.policy}: name the folder of the "
            "one that you calibrate, and the file with --out"
        )
    horizons = {one.horizon for one in answered}
    if len(horizons) > 1:
        return "of several horizons"
    if not all(stays(one.horizon, one.horizon_reason) for one in answered):
        return "of horizons that were decided round by round"
    recorded.policy = task.policy
    recorded.chunk_size = max(recorded.chunk_size, *(one.chunk_size for one in answered))
    of_kind = recorded.tasks.setdefault(KINDS.get(task.scene, task.scene), {})
    of_kind.setdefault(horizons.pop(), []).append(success)
    return ""


def _judged(run: FleetRun) -> dict[tuple[str, str], bool]:
    """By the monitor's last word on each task."""
    judged = run.pipeline.judged if run.pipeline else ()
    return {
        (one.robot, one.task): one.said == TaskState.DONE
        for one in judged
        if one.component == Component.MONITOR
    }


def choose(
    outcomes: Mapping[int, Sequence[bool]], worst_loss: float, slack: float, error: float
) -> Chosen:
    """The longest horizon whose tasks show that it loses less than `worst_loss`, and no more than
    `slack` by their estimate, to the horizon whose success is surest (the highest lower end of its
    95 % interval). Wrong with a probability of at most `error`."""
    counts = {h: (sum(of), len(of)) for h, of in sorted(outcomes.items())}
    enough = {h: of for h, of in outcomes.items() if len(of) >= LEAST}
    if not enough:
        return Chosen(counts)
    reference = max(enough, key=lambda h: (wilson_95(*counts[h])[0], h))
    longer = [h for h in sorted(enough, reverse=True) if h > reference]
    needed = len(longer) / error
    compared = []
    for h in longer:
        paired = PairedOutcomes()
        for before, after in zip(outcomes[reference], outcomes[h], strict=False):
            paired = paired.and_pair(before, after)
        evidence = paired.evidence(worst_loss)
        holds = evidence >= needed and paired.loss <= slack
        compared.append(Compared(h, paired, evidence, needed, holds))
        if holds:
            return Chosen(counts, reference, h, tuple(compared))
    return Chosen(counts, reference, reference, tuple(compared))


def tasks_needed(compared: Compared, worst_loss: float) -> int:
    """Tasks of each of the two horizons that it would take if they went on as they began; 0: it
    loses too much for any number."""
    n, gone = compared.outcomes.pairs, compared.outcomes
    for times in (1.25**k for k in range(1, 40)):
        more = PairedOutcomes(*(round(times * c) for c in (gone.alike, gone.lost, gone.won)))
        if more.evidence(worst_loss) >= compared.needed:
            return math.ceil(times * n)
    return 0


def calibration_of(
    recorded: Recorded,
    chosen: Mapping[str, Chosen],
    how: Mapping[str, Any],
    keep: HorizonCalibration | None = None,
) -> HorizonCalibration:
    """Plans of the tasks whose outcomes carry one. keep: plans of other tasks that stay.

    Raises ConfigError where no task has any, with what is missing, and where `keep` is of another
    policy.
    """
    carried = {kind: one for kind, one in chosen.items() if not one.missing}
    if not carried:
        if not chosen:
            raise ConfigError(
                "no task of the bags counts: record tasks whose horizon is fixed before they "
                "begin, under explore:0.1 or a static horizon"
            )
        missing = [f"{kind}: {one.missing}" for kind, one in chosen.items()]
        more = f"; and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        told = "; ".join(missing[:SHOWN])
        raise ConfigError(f"the bags carry no plan ({told}{more}); record more tasks")
    if keep:
        keep.require_policy(recorded.policy)
    plans = {
        names: plan
        for names, plan in (keep.tasks if keep else {}).items()
        if not set(names) & set(carried)
    }
    static = {
        names: h
        for names, h in (keep.static.tasks if keep and keep.static else {}).items()
        if not set(names) & set(carried)
    }
    named = {kind: _names(kind, keep) for kind in carried}
    plans |= {named[kind]: HorizonPlan((), one.horizon) for kind, one in carried.items()}
    static |= {named[kind]: one.reference for kind, one in carried.items()}
    return HorizonCalibration(
        recorded.policy,
        recorded.chunk_size,
        plans,
        keep.unknown if keep else None,  # what one task bears says nothing of others
        how,
        StaticHorizons(static, min(static.values()), how),
        {
            names: critic
            for names, critic in (keep.critics if keep else {}).items()
            if not set(names) & set(carried)
        },
    )


def _names(kind: str, keep: HorizonCalibration | None) -> tuple[str, ...]:
    """Of a task: as it was calibrated before, else its kind, with the instruction of a scene."""
    before = (names for names in (keep.tasks if keep else ()) if kind in names)
    scene = (kind, SCENES[kind]) if kind in SCENES else (kind,)
    return next(before, scene)
