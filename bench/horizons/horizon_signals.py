"""Do signals inside a chunk know the delicate phase of a task? Prints one row per rule.

    python -m bench horizon_signals --task lever-pull-v3 --disturbance 0

Each signal is a number per action; a chunk is executed until it exceeds a limit, at least `floor`
actions. Scenes are those of the calibration: this is where rules are searched, not judged.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kairos_ros.core.horizons.calibration import HorizonPlan
from kairos_ros.core.horizons.policies import (
    Floats,
    Horizon,
    HorizonContext,
    HorizonPolicy,
    Static,
    TailAgreement,
)
from kairos_ros.robot.adapters.sim.metaworld_scenes import GRIPPER, SCENES

FIRST_SEED = 2_000_000

Signal = Callable[[Floats, Floats], Floats]
"""updates [K, N, D], chunk [N, D] -> [N]; larger is less trusted."""


def x1_change(updates: Floats, chunk: Floats) -> Floats:
    """How far the flow's prediction of the action moved from the first sampler step to the last."""
    return np.asarray(np.linalg.norm(updates.sum(axis=0) - len(updates) * updates[0], axis=1))


def final_step(updates: Floats, chunk: Floats) -> Floats:
    """Size of the last update over its median in this chunk; of two in a row, the smaller."""
    size = np.linalg.norm(updates[-1], axis=1)
    relative = size / np.median(size)
    return np.asarray(np.minimum(relative, np.append(relative[1:], relative[-1])))


def slowness(updates: Floats, chunk: Floats) -> Floats:
    """Minus the hand's speed, normalised units: contact is slow."""
    return np.asarray(-np.linalg.norm(chunk[:, :GRIPPER], axis=1))


@dataclass(frozen=True, slots=True)
class Until:
    """Executes until the signal exceeds the limit."""

    signal: Signal
    limit: float
    floor: int = 10

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        over = self.signal(updates, chunk) > self.limit
        stop = int(over.argmax()) if over.any() else len(chunk)
        return Horizon(max(stop, self.floor), np.ones(len(chunk), np.float32), "signal")


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan for every task."""

    plan: HorizonPlan

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        length = self.plan.horizon(context.round)
        return Horizon(length, np.ones(len(chunk), np.float32), "plan")


RULES: dict[str, HorizonPolicy] = {
    "static 5": Static(5),
    "static 10": Static(10),
    "static 50": Static(50),
    "30 in the first round, then 10": Planned(HorizonPlan((30,), 10)),
    "10-10-10-20-50 then 10": Planned(HorizonPlan((10, 10, 10, 20, 50), 10)),
    "agrees with the previous tail within 0.5, from 10 on": TailAgreement(0.5, 10),
    "x1 prediction moved less than 1.5, from 10 on": Until(x1_change, 1.5),
    "final updates below 1.6 of their median, from 10 on": Until(final_step, 1.6),
    "hand faster than 0.5, from 10 on": Until(slowness, -0.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--policy", type=Path, default=Path("models/metaworld_flow"))
    parser.add_argument("--task", choices=SCENES, default="lever-pull-v3")
    parser.add_argument("--disturbance", type=float, default=0.0, help="action units")
    parser.add_argument("--episodes", type=int, default=64)
    arguments = parser.parse_args()
    from kairos_ros.lab.training.bench import arms, policy_under_test
    from kairos_ros.lab.training.rollout import run_episodes

    policy = policy_under_test(str(arguments.policy))
    bodies = arms(str(arguments.policy), arguments.task)
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.episodes)
    print("| rule | success % | mean executed horizon | rounds per episode |\n|---|---|---|---|")
    for name, rule in RULES.items():
        episodes = run_episodes(policy, arguments.task, seeds, rule, bodies, arguments.disturbance)
        rounds = sum(e.rounds for e in episodes)
        success = 100 * sum(e.success for e in episodes) / len(episodes)
        horizon = sum(e.actions for e in episodes) / rounds
        print(f"| {name} | {success:.0f} | {horizon:.1f} | {rounds / len(seeds):.1f} |", flush=True)


if __name__ == "__main__":
    main()
