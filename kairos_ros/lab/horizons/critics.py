"""Critics for the tasks of a calibration: taught, given an allowed risk, and tested against plans.

1. Episodes with drawn horizons teach a critic (`teaching.py`, `critic_fit.py`).
2. On episodes of their own, every allowed risk of a list is tried. From the one with the fewest
   rounds that loses no more than the slack to the task's tuned static horizon, one step back is
   taken: the boldest of several that look well was also lucky.
3. If it needs fewer rounds than the task's plan, it is tested on episodes that chose nothing, by
   the test that plans pass (`search.py`). A critic that holds replaces the plan; no other does.

Some first rounds may keep the tuned static horizon (`CriticOptions.careful_rounds`): what begins a
task is often what fails it, and then the later rounds tell little.

The error that this test may have is taken from what the tests of the plans have left of the error
of the whole calibration.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan
from kairos_ros.core.horizons.critic import Critic
from kairos_ros.core.horizons.evidence import PairedOutcomes
from kairos_ros.core.horizons.policies import CALIBRATED, TUNED
from kairos_ros.engine.policies.calibration_file import write_calibration
from kairos_ros.lab.horizons import cells, teaching
from kairos_ros.lab.horizons.search import SearchOptions, judged
from kairos_ros.lab.horizons.task_runs import (
    Outcome,
    TaskRuns,
    compared,
    mean_rounds,
    planned_tasks,
)
from kairos_ros.lab.metrics.cells import Key, run_cells, source_version
from kairos_ros.lab.training.bench import policy_under_test

ALLOWED = (1e-05, 3e-05, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
"""Risks that are tried, ascending."""
SECOND_LESSON = 0.005
"""Risk that the critic of the first lesson is allowed in the second one."""
MOST_CAREFUL = 100
LOOK = 384
"""Paired episodes between two looks at a test: enough that all processes have work."""


@dataclass(frozen=True, slots=True)
class CriticOptions:
    """How much is simulated for a task, beside what `SearchOptions` says of validation and test."""

    teach_episodes: int = 3000
    """Of each of the two lessons."""
    careful_rounds: int = 0
    """Rounds of a task, from the first on, that keep its tuned static horizon; the critic judges
    the later ones."""
    teach_seed: int = 8_000_000
    validate_seed: int = 8_500_000
    test_seed: int = 8_600_000

    def __post_init__(self) -> None:
        most = (self.validate_seed - self.teach_seed) // 2
        if not 16 <= self.teach_episodes <= most:
            raise ConfigError(f"teach_episodes is 16 to {most}, not {self.teach_episodes}")
        if not 0 <= self.careful_rounds <= MOST_CAREFUL:
            raise ConfigError(f"careful_rounds is 0 to {MOST_CAREFUL}, not {self.careful_rounds}")

    def plan(self, careful: int) -> HorizonPlan:
        """Of a task with a critic. careful: its tuned static horizon."""
        return HorizonPlan((careful,) * self.careful_rounds, careful)


TEACHING = (*cells.CODE, "lab/horizons/teaching.py")
"""Sources that decide a lesson, below the package."""


def add_critics(
    policy: Path,
    calibration: HorizonCalibration,
    scenes: Sequence[str],
    search: SearchOptions,
    options: CriticOptions | None = None,
    *,
    disturbance: float = 0.0,
    lead: int = 0,
    work: Path = Path("runs/calibrate"),
    processes: int = 1,
    report: Callable[[str], None] = print,
) -> HorizonCalibration:
    """`calibration` with a critic for each of `scenes` where one holds. What ran is kept in `work`.

    disturbance, lead: as in `calibrate`. Raises ConfigError for a calibration of another policy or
    without tuned static horizons, and for a scene that it has no plan for.
    """
    options = options or CriticOptions()
    under_test = policy_under_test(str(policy))
    calibration.require_policy(under_test.policy_id)
    if calibration.static is None:
        raise ConfigError(
            "a critic is tested against static:tuned, and this calibration has none; run 'kairos "
            "calibrate --static-only' first"
        )
    for scene, names in planned_tasks(calibration, scenes).items():
        runs = TaskRuns(
            policy, under_test.policy_id, scene, lead, disturbance, work, processes, report
        )
        error = unspent_error(calibration, search, names)
        settings = asdict(options) | {"disturbance": disturbance, "lead": lead}
        critic, how = _learn(runs, calibration, names, search, options, error)
        earlier = {n: c for n, c in calibration.critics.items() if n != names}
        told = dict(calibration.how.get("critics", {})) | {scene: settings | how}
        plan = options.plan(calibration.careful(names)) if critic else calibration.tasks[names]
        calibration = replace(
            calibration,
            tasks=dict(calibration.tasks) | {names: plan},
            critics=earlier | ({names: critic} if critic else {}),
            how=dict(calibration.how) | {"critics": told},
        )
    return calibration


def unspent_error(
    calibration: HorizonCalibration, search: SearchOptions, names: tuple[str, ...]
) -> float:
    """Of a test of this task's critic: an equal share of what other tests left of the error.

    Every other task whose critic was not tested yet, and that has horizons to choose from, keeps as
    much. Raises ConfigError where nothing is left.
    """
    found: Mapping[str, Any] = calibration.how.get("found", {})
    told: Mapping[str, Any] = calibration.how.get("critics", {})
    tests = [test for of_task in found.values() for test in of_task.get("tests", ())]
    tests += [test for of_task in told.values() for test in of_task["tests"]]
    error = float(calibration.how.get("error", search.error))
    left = error - sum(1 / test["needed"] for test in tests)
    assert calibration.static
    horizons = calibration.static.tasks
    open_tasks = [
        n for n, h in horizons.items() if n == names or (h < search.ladder[-1] and n[0] not in told)
    ]
    if left <= 0:
        raise ConfigError(
            f"the tests of this calibration have used up its error of {error:g}: nothing more can "
            "be tested with it; calibrate anew"
        )
    return float(left / len(open_tasks))


def _learn(
    runs: TaskRuns,
    calibration: HorizonCalibration,
    names: tuple[str, ...],
    search: SearchOptions,
    options: CriticOptions,
    error: float,
) -> tuple[Critic | None, dict[str, Any]]:
    assert calibration.static
    static = replace(calibration.static, tasks={names: calibration.careful(names)}, how={})
    # of this task alone, so that cells are named alike whatever other tasks came to
    base = replace(
        calibration, tasks={names: calibration.tasks[names]}, static=static, critics={}, how={}
    )
    judged_late = replace(base, tasks={names: options.plan(calibration.careful(names))})

    def rule_of(critic: Critic | None, label: str, of: str = CALIBRATED) -> str:
        file = (runs.work / f"{names[0]}_{label}.json").resolve()
        write_calibration(file, replace(judged_late, critics={names: critic}) if critic else base)
        return cells.calibrated_rule(of, file)

    careful = judged_late.tasks[names].rounds
    learned, how = _teach(runs, search.ladder, careful, options, rule_of)
    critics = {risk: replace(learned, allowed=risk) for risk in ALLOWED}
    tuned = plan = rule_of(None, "plans", TUNED)
    if calibration.tasks[names] != HorizonPlan((), calibration.careful(names)):
        plan = rule_of(None, "plans")
    rules = {risk: rule_of(critic, f"{risk:g}") for risk, critic in critics.items()}
    seeds = range(options.validate_seed, options.validate_seed + search.episodes)
    tuned_ran, plan_ran, *ran = runs.run([tuned, plan, *rules.values()], seeds, "validate")
    # a task is tested again on seeds that no earlier test has seen, and what those spent is spent
    earlier = calibration.how.get("critics", {}).get(names[0], {}).get("tests", [])
    how["tests"] = list(earlier)
    how["tuned"], how["plan"] = _summary(tuned_ran), _summary(plan_ran)
    how["tried"] = {f"{risk:g}": _summary(of) for risk, of in zip(rules, ran, strict=True)}
    promising = {
        risk: of
        for risk, of in zip(rules, ran, strict=True)
        if compared(tuned_ran, of).loss <= search.slack
    }
    for risk, of in zip(rules, ran, strict=True):
        runs.report(f"{names[0]}, risk {risk:g} allowed: {_summary_line(of)}")
    runs.report(f"{names[0]}, its plan: {_summary_line(plan_ran)}")
    boldest = min(promising, key=lambda risk: mean_rounds(promising[risk]), default=ALLOWED[0])
    best = ALLOWED[max(0, ALLOWED.index(boldest) - 1)]
    if not promising or mean_rounds(ran[ALLOWED.index(best)]) >= mean_rounds(plan_ran):
        runs.report(f"{names[0]}: no critic needs fewer rounds than its plan; the plan stays")
        return None, how
    first_seed = max([options.test_seed, *(test["last_seed"] + 1 for test in earlier)])
    test = _test(runs, tuned, rules[best], search, first_seed, 1 / error)
    how["tests"].append({"allowed": best} | test)
    return (critics[best] if test["holds"] else None), how


def _teach(
    runs: TaskRuns,
    horizons: tuple[int, ...],
    careful: tuple[int, ...],
    options: CriticOptions,
    rule_of: Callable[[Critic, str], str],
) -> tuple[Critic, dict[str, Any]]:
    """A critic that allows no risk yet, and what it was taught with. careful: horizons of the
    rounds before it judges. rule_of: critic, label -> what cells run (`cells.named_rules`)."""
    common = {"horizons": list(horizons), "careful": list(careful)}
    lessons = [_lesson(runs, common | {"rule": ""}, options)]
    for horizon, of in teaching.failed_by_first_round(lessons[0], horizons).items():
        runs.report(
            f"{runs.scene}, first drawn round of {horizon} actions: {of.mean():.1%} of "
            f"{of.size} episodes fail"
        )
    first = replace(_fitted(runs, horizons, lessons), allowed=SECOND_LESSON)
    lessons.append(_lesson(runs, common | {"rule": rule_of(first, "first")}, options))
    failed = [round(float(np.mean([not e["success"] for e in of])), 4) for of in lessons]
    return _fitted(runs, horizons, lessons), {"failed": failed}


def _lesson(runs: TaskRuns, lesson: Key, options: CriticOptions) -> list[dict[str, Any]]:
    """Episodes, see `teaching.run_teaching_cell`."""
    count = options.teach_episodes
    first = options.teach_seed + (count if lesson["rule"] else 0)
    common = {"policy_id": runs.policy_id, **lesson}
    keys = [common | episodes for episodes in runs.blocks(range(first, first + count))]
    rows = runs.cells("teach", keys, teaching.run_teaching_cell, TEACHING, _taught_line)
    return [episode for row in rows for episode in row]


def _fitted(
    runs: TaskRuns, horizons: tuple[int, ...], lessons: list[list[dict[str, Any]]]
) -> Critic:
    from kairos_ros.lab.horizons.critic_fit import fit_critic

    def fit(_: Key) -> Any:
        return fit_critic(
            teaching.taught(*lessons),
            horizons,
            policy_under_test(str(runs.policy)).action_offset,
            report=lambda line: runs.report(f"{runs.scene}, learns: {line}"),
        ).to_dict()

    content = json.dumps([horizons, lessons]).encode()
    (fitted,) = run_cells(
        runs.work / f"fit_{runs.scene}.jsonl",
        [{"task": runs.scene, "lessons": hashlib.sha256(content).hexdigest()}],
        fit,
        code=source_version(("core/horizons/critic.py", "lab/horizons/critic_fit.py")),
        processes=1,
        finished=lambda left, key, row: None,
    )
    return Critic.from_dict(fitted)


def _test(
    runs: TaskRuns,
    reference: str,
    rule: str,
    search: SearchOptions,
    first_seed: int,
    needed: float,
) -> dict[str, Any]:
    """As `search` tests plans, but for how often it looks."""
    outcomes = PairedOutcomes()
    rounds = np.zeros(2)
    end = first_seed + search.most_episodes
    verdict = judged(outcomes, search, needed)
    for at in range(first_seed, end, LOOK):
        before, after = runs.run([reference, rule], range(at, min(at + LOOK, end)), "test")
        outcomes = compared(before, after, outcomes)
        rounds += [sum(n for _, n in ran) for ran in (before, after)]
        verdict = judged(outcomes, search, needed)
        runs.report(
            f"{runs.scene}: in {outcomes.pairs} pairs of episodes the critic lost {outcomes.lost} "
            f"and won {outcomes.won}; evidence {verdict.evidence:.3g} of {needed:.0f}"
        )
        if verdict.ended:
            break
    runs.report(
        f"{runs.scene}: the critic {'holds' if verdict.holds else 'does not hold'}, with "
        f"{rounds[1] / outcomes.pairs:.2f} rounds per episode instead of "
        f"{rounds[0] / outcomes.pairs:.2f}"
    )
    return {
        "outcomes": asdict(outcomes),
        "first_seed": first_seed,
        "last_seed": first_seed + outcomes.pairs - 1,
        "reference_rounds": round(rounds[0] / outcomes.pairs, 4),
        "rounds_per_episode": round(rounds[1] / outcomes.pairs, 4),
        "evidence": float(f"{verdict.evidence:.3g}"),
        "needed": round(needed),
        "holds": verdict.holds,
    }


def _summary(ran: Sequence[Outcome]) -> dict[str, float]:
    return {
        "successes": sum(ok for ok, _ in ran),
        "episodes": len(ran),
        "rounds_per_episode": round(mean_rounds(ran), 4),
    }


def _summary_line(ran: Sequence[Outcome]) -> str:
    return f"{sum(ok for ok, _ in ran)} of {len(ran)} succeed, {mean_rounds(ran):.2f} rounds each"


def _taught_line(key: Key, row: Any) -> str:
    return f"{sum(episode['success'] for episode in row)} of {len(row)} succeed"
