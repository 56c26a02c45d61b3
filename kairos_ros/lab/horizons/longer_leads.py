"""Up to which lead a calibration holds, beside the horizons of a policy without one.

A calibration is made with one lead, the actions that are executed while a chunk is made. Where an
engine is slow or far away robots have longer ones, and then a plan may fail that was safe. So each
plan runs with longer leads, on the same scenes as the horizons that robots get otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.core.horizons.policies import CALIBRATED, UNCALIBRATED
from kairos_ros.engine.policies.calibration_file import write_calibration
from kairos_ros.lab.horizons import cells
from kairos_ros.lab.horizons.task_runs import TaskRuns, compared, mean_rounds, planned_tasks
from kairos_ros.lab.training.bench import policy_under_test

FIRST_SEED = 8_800_000
"""No search, tuning, test or critic uses these."""


def limit_leads(
    policy: Path,
    calibration: HorizonCalibration,
    scenes: Sequence[str],
    leads: Sequence[int],
    *,
    episodes: int = 128,
    worst_loss: float = 0.02,
    disturbance: float = 0.0,
    work: Path = Path("runs/calibrate"),
    processes: int = 1,
    report: Callable[[str], None] = print,
) -> HorizonCalibration:
    """`calibration` with the longest lead of each plan of `scenes` that fails with a longer one.

    It fails with the first of `leads` (actions, ascending) with which it loses more than
    `worst_loss`, a share, by the estimate from `episodes` pairs; the lead before is its longest.
    What ran is kept in `work`. Raises ConfigError for a calibration of another policy, a scene that
    it has no plan for, and leads that do not ascend from the one it was made with.
    """
    policy_id = policy_under_test(str(policy)).policy_id
    calibration.require_policy(policy_id)
    made_with = calibration.how.get("lead", 0)
    ladder = (made_with, *leads)
    if not leads or sorted(set(ladder)) != list(ladder):
        raise ConfigError(
            f"leads must ascend from more than {made_with} actions, the lead of the calibration; "
            f"not {', '.join(map(str, leads)) or 'nothing'}"
        )
    for scene, names in planned_tasks(calibration, scenes).items():
        plan = replace(calibration.tasks[names], longest_lead=None)
        critics = {n: critic for n, critic in calibration.critics.items() if n == names}
        file = (work / f"{scene}_leads.json").resolve()
        alone = replace(calibration, tasks={names: plan}, critics=critics, how={})
        work.mkdir(parents=True, exist_ok=True)
        write_calibration(file, alone)
        rules = [UNCALIBRATED, cells.calibrated_rule(CALIBRATED, file)]
        tried: dict[str, Any] = {}
        for shorter, lead in zip(ladder, leads, strict=False):
            runs = TaskRuns(policy, policy_id, scene, lead, disturbance, work, processes, report)
            seeds = range(FIRST_SEED, FIRST_SEED + episodes)
            without, planned = runs.run(rules, seeds, "leads")
            outcomes = compared(without, planned)
            tried[str(lead)] = asdict(outcomes) | {
                "success": sum(ok for ok, _ in planned) / episodes,
                "rounds_per_episode": round(mean_rounds(planned), 4),
                "rounds_without": round(mean_rounds(without), 4),
            }
            report(
                f"{scene}, a lead of {lead}: in {outcomes.pairs} pairs of episodes its plan lost "
                f"{outcomes.lost} and won {outcomes.won}, with {mean_rounds(planned):.2f} rounds "
                f"instead of {mean_rounds(without):.2f}"
            )
            if outcomes.loss > worst_loss:
                plan = replace(plan, longest_lead=shorter)
                break
        told = dict(calibration.how.get("leads", {})) | {scene: tried}
        calibration = replace(
            calibration,
            tasks=dict(calibration.tasks) | {names: plan},
            how=dict(calibration.how) | {"leads": told},
        )
    return calibration
