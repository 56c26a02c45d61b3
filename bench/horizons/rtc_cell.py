"""One cell of `bench rtc`: some episodes of one task, in a process that keeps its policies."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kairos_ros.bringup.plan import calibrated
from kairos_ros.core.horizons.policies import parse_horizon
from kairos_ros.lab.metrics.cells import Key
from kairos_ros.lab.training.bench import arms

if TYPE_CHECKING:
    from kairos_ros.lab.training.rollout import PolicyUnderTest


def run_cell(key: Key) -> dict[str, list[Any]]:
    """success, rounds, actions and jerk have one value per episode; seam and step one per jump."""
    from kairos_ros.lab.training.rollout import run_episodes

    task, folder = key["task"], key["folder"]
    done = run_episodes(
        _policy(folder, key["side"] == "guided"),
        task,
        range(key["first_seed"], key["first_seed"] + key["episodes"]),
        parse_horizon(key["horizon"], calibrated(folder)),
        arms(folder, task),
        key["disturbance"],
        key["lead"],
    )
    return {
        "success": [one.success for one in done],
        "rounds": [one.rounds for one in done],
        "actions": [one.actions for one in done],
        "jerk": [one.jerk for one in done],
        "seam": [jump for one in done for jump in one.seams],
        "step": [jump for one in done for jump in one.steps],
    }


@cache
def _policy(folder: str, guided: bool) -> "PolicyUnderTest":
    import torch

    from kairos_ros.lab.training.rollout import PolicyUnderTest

    torch.set_num_threads(1)
    return PolicyUnderTest(Path(folder), rtc=guided)
