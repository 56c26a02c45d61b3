"""Traces of simulated episodes, each recorded alone under one horizon policy (Dai et al. §5.1).

They hold when rounds were requested, their horizons and how much of them was executed, and no
chunks: a horizon policy is replayed from its own traces and is never judged again.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import CALIBRATED, TUNED, parse_horizon
from kairos_ros.engine.policies.calibration_file import NAME
from kairos_ros.lab.horizons.cells import BLOCK, horizon_policy, named_rules
from kairos_ros.lab.metrics.cells import Key, run_cells, source_version
from kairos_ros.lab.training.bench import EPISODES, arms, policy_under_test
from kairos_ros.lab.training.rollout import RoundLog
from kairos_ros.recording.runs.trace import Trace, TraceRound
from kairos_ros.robot.adapters.sim.metaworld_scenes import ACTION_DIM, SCENES

RATE_HZ = 30.0
FIRST_SEED = 3_500_000
"""No demonstration, evaluation, calibration or horizon study used these scenes."""
HORIZONS = (TUNED, "static:10", "tail_agreement", CALIBRATED, "confidence:t=0.1")


def record_traces(
    folder: Path,
    *,
    scenes: Sequence[str] = tuple(SCENES),
    horizons: Sequence[str] = HORIZONS,
    episodes: int = 64,
    lead: int = 2,
    first_seed: int = FIRST_SEED,
    work: Path = Path("runs/traces"),
    processes: int = 1,
    finished: Callable[[int, int, str], None] = lambda done, cells, text: None,
) -> list[Trace]:
    """`episodes` of every scene under every horizon policy, on the same seeds for all of them.

    lead: as in `rollout.run_episodes`. Finished cells are kept in `work`; `finished` is told how
    many are done, of how many, and the last one. Raises ConfigError for an unknown scene or horizon
    policy, and for a calibration that is not there.
    """
    if unknown := [scene for scene in scenes if scene not in SCENES] or not scenes:
        raise ConfigError(f"unknown tasks {unknown}; choose from {', '.join(SCENES)}")
    named = {name: (name, NAME) for name in horizons if name in (TUNED, CALIBRATED)}
    plain = [name for name in horizons if name not in named]
    for name in plain:
        parse_horizon(name)
    under_test = policy_under_test(str(folder))
    rules = named_rules(folder, plain, named)
    keys: list[Key] = [
        {
            "policy_id": under_test.policy_id,
            "folder": str(folder),
            "task": scene,
            "rule": rules[name],
            "horizon": name,
            "lead": lead,
            "first_seed": at,
            "episodes": min(BLOCK, first_seed + episodes - at),
        }
        for scene in scenes
        for name in horizons
        for at in range(first_seed, first_seed + episodes, BLOCK)
    ]
    rows = run_cells(
        work / "cells.jsonl",
        keys,
        _run,
        code=source_version((*EPISODES, "lab/horizons/cells.py", "lab/horizons/traces.py")),
        processes=processes,
        finished=lambda left, key, _: finished(
            len(keys) - left, len(keys), f"{key['task']} {key['horizon']}"
        ),
    )
    return [
        _trace(key, episode, under_test.chunk_size)
        for key, row in zip(keys, rows, strict=True)
        for episode in row
    ]


def _run(key: Key) -> list[dict[str, Any]]:
    from kairos_ros.lab.training.rollout import run_episodes

    return [
        {
            "seed": episode.seed,
            "success": episode.success,
            "actions": episode.actions,
            "rounds": [[r.observed_at, r.horizon, r.begun] for r in episode.log],
        }
        for episode in run_episodes(
            policy_under_test(key["folder"]),
            key["task"],
            range(key["first_seed"], key["first_seed"] + key["episodes"]),
            horizon_policy(key["folder"], key["rule"]),
            arms(key["folder"], key["task"], key["episodes"]),
            lead=key["lead"],
        )
    ]


def _trace(key: Key, episode: dict[str, Any], chunk_size: int) -> Trace:
    rounds = rounds_of([RoundLog(*row) for row in episode["rounds"]], episode["actions"])
    return Trace(
        name=f"{key['task']} {episode['seed']} {key['horizon']}",
        kind=key["task"],
        instruction=SCENES[key["task"]],
        seed=episode["seed"],
        control_rate_hz=RATE_HZ,
        chunk_size=chunk_size,
        action_dim=ACTION_DIM,
        policy=key["policy_id"],
        horizon_policy=key["horizon"],
        success=episode["success"],
        duration_s=episode["actions"] / RATE_HZ,
        rounds=rounds,
    )


def rounds_of(log: Sequence[RoundLog], actions: int) -> tuple[TraceRound, ...]:
    """Rounds of an episode that executed `actions` in all. A chunk's execution begins where the
    chunk before it ends, `begun` actions after the observation."""
    begins = [0, *(r.observed_at + r.begun for r in log[1:]), actions]
    return tuple(
        TraceRound(
            round=number,
            requested_at=r.observed_at,
            observed_at=r.observed_at,
            horizon=r.horizon,
            executed=max(0, min(end, actions) - min(begin, actions)),
        )
        for number, (r, (begin, end)) in enumerate(zip(log, pairwise(begins), strict=True), 1)
    )
