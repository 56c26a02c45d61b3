"""Cells of simulated episodes: some episodes of one task under one horizon policy, and their names.

A horizon policy that a calibration stands for is named with its file and that file's content:
`calibrated@horizon_calibration.json@0123456789ab`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import HorizonPolicy, parse_horizon
from kairos_ros.core.horizons.surprise import Joint, SurpriseWatch, parse_surprise
from kairos_ros.engine.policies.calibration_file import read_calibration
from kairos_ros.host.share import share
from kairos_ros.lab.metrics.cells import Key
from kairos_ros.lab.training.bench import EPISODES, arms, policy_under_test
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

CODE = (*EPISODES, "core/horizons/surprise.py", "lab/horizons/cells.py", "lab/training/events.py")
"""Sources that decide a cell, below the package."""
HAND = tuple(Joint(f"hand_{axis}", i, i, position=False) for i, axis in enumerate("xyz"))
"""Of Meta-World's arm: the first entries of action and state are of the hand."""
WARM_UP_HORIZON = "static:15"
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
        rules[label] = calibrated_rule(policy, file, name)
    return rules


def calibrated_rule(policy: str, file: Path, name: str = "") -> str:
    """`rule` of a horizon policy that comes from a calibration file. name: of the file in the
    policy folder; empty: its path."""
    return f"{policy}@{name or file}@{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def horizon_policy(folder: str, rule: str) -> HorizonPolicy:
    """What `rule` stands for."""
    name, _, file = rule.partition("@")
    calibration = read_calibration(Path(folder) / file.partition("@")[0]) if file else None
    return parse_horizon(name, calibration.policies() if calibration else None)


def run_cell(key: Key) -> dict[str, list[int]]:
    """Outcome of every episode: success, rounds, actions, surprises.

    key: folder, task, rule, disturbance, lead, first_seed, episodes; push_m, push_periods and
    knock_m_s (0: nothing happens); surprise (a surprise rule; empty: nothing is watched),
    surprised_horizon (as of the serving node) and warm_up_seed.
    """
    from kairos_ros.lab.training.events import Event, draw_knock, draw_push
    from kairos_ros.lab.training.rollout import run_episodes

    watch = None
    if key["surprise"]:
        # before the cell's arms, which would be loaded twice
        known = known_arm(key["folder"], key["surprise"], key["warm_up_seed"], key["lead"])
        watch = known.twin
    seeds = range(key["first_seed"], key["first_seed"] + key["episodes"])
    events: dict[int, Event] = {}
    if key["push_m"]:
        events = {seed: draw_push(seed, key["push_m"], key["push_periods"]) for seed in seeds}
    elif key["knock_m_s"]:
        events = {seed: draw_knock(seed, key["knock_m_s"]) for seed in seeds}
    episodes = run_episodes(
        policy_under_test(key["folder"]),
        key["task"],
        seeds,
        horizon_policy(key["folder"], key["rule"]),
        arms(key["folder"], key["task"], key["episodes"]),
        key["disturbance"],
        key["lead"],
        events=events,
        watch=watch,
        surprised_horizon=key["surprised_horizon"],
    )
    return {
        "success": [int(episode.success) for episode in episodes],
        "rounds": [episode.rounds for episode in episodes],
        "actions": [episode.actions for episode in episodes],
        "surprises": [episode.surprises for episode in episodes],
    }


@lru_cache(maxsize=1)
def known_arm(folder: str, surprise: str, seed: int, lead: int) -> SurpriseWatch:
    """What a surprise rule knows of an arm that has done each task once, undisturbed."""
    from kairos_ros.lab.training.rollout import run_episodes

    watch = parse_surprise(surprise).watch(HAND)

    def of_next() -> SurpriseWatch:
        watch.begin()
        return watch

    policy, decide = policy_under_test(folder), parse_horizon(WARM_UP_HORIZON)
    for scene in SCENES:
        run_episodes(
            policy, scene, [seed], decide, arms(folder, scene, 1), lead=lead, watch=of_next
        )
    return watch


def joined(blocks: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    """Cells of one task and rule as one."""
    return {name: [x for block in blocks for x in block[name]] for name in blocks[0]}
