"""Cells of simulated episodes: some episodes of one task under one horizon policy, and their names.

A horizon policy that a calibration stands for is named with its file and that file's content:
`calibrated@horizon_calibration.json@0123456789ab`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import HorizonPolicy, parse_horizon
from kairos_ros.host.share import share
from kairos_ros.lab.metrics.cells import Key
from kairos_ros.lab.training.bench import arms, policy_under_test
from kairos_ros.serving.calibration_file import read_calibration

BLOCK = 16
"""Episodes per cell: what one policy call can serve together, and so that a study can grow."""


def policy_folder(policy: str) -> Path:
    """As given, or of the installed package. Raises ConfigError where it is neither."""
    folder = Path(policy)
    if not folder.is_dir():
        folder = share() / policy
    if not folder.is_dir():
        raise ConfigError(f"policy {policy!r} is no folder, neither here nor in {share()}")
    return folder


def named_rules(
    folder: Path, policies: Iterable[str], calibrated: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """Name in tables -> `rule` of a cell.

    calibrated: name -> horizon policy and calibration file in `folder` that it comes from. Raises
    ConfigError for a calibration that is not there, or another policy's.
    """
    rules = {name: name for name in policies}
    for label, (policy, name) in calibrated.items():
        file = folder / name
        calibration = read_calibration(file)
        calibration.require_policy(policy_under_test(str(folder)).policy_id)
        parse_horizon(policy, calibration.policies())
        rules[label] = f"{policy}@{name}@{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
    return rules


def horizon_policy(folder: str, rule: str) -> HorizonPolicy:
    """What `rule` stands for."""
    name, _, file = rule.partition("@")
    calibration = read_calibration(Path(folder) / file.partition("@")[0]) if file else None
    return parse_horizon(name, calibration.policies() if calibration else None)


def run_cell(key: Key) -> dict[str, list[int]]:
    """Outcome of every episode: success, rounds, actions.

    key: folder, task, rule, disturbance, lead, first_seed, episodes.
    """
    from kairos_ros.lab.training.rollout import run_episodes

    seeds = range(key["first_seed"], key["first_seed"] + key["episodes"])
    episodes = run_episodes(
        policy_under_test(key["folder"]),
        key["task"],
        seeds,
        horizon_policy(key["folder"], key["rule"]),
        arms(key["folder"], key["task"], key["episodes"]),
        key["disturbance"],
        key["lead"],
    )
    return {
        "success": [int(episode.success) for episode in episodes],
        "rounds": [episode.rounds for episode in episodes],
        "actions": [episode.actions for episode in episodes],
    }


def joined(blocks: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    """Cells of one task and rule as one."""
    return {name: [x for block in blocks for x in block[name]] for name in blocks[0]}
