"""Real-time chunking against plain chunks, in simulation. Prints one row a cell.

    python -m bench rtc --episodes 40 --lead 5 10

A robot plans while it moves: between an observation and the first action of its chunk it executes
`lead` actions of the chunk before, so lead is the latency in control periods. With guidance the
policy is told them. Both sides run the same seeds, in turn. Seam: jump of the hand's commanded
speed at a switch of chunks, over its jump between two actions of a chunk.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kairos_ros.core.horizon import parse_horizon
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

if TYPE_CHECKING:
    from kairos_ros.lab.training.rollout import EpisodeResult

FIRST_SEED = 4_000_000
TASKS = ("door-open-v3", "drawer-open-v3", "lever-pull-v3", "push-v3")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--policy", type=Path, default=Path("models/metaworld_flow"))
    parser.add_argument("--tasks", nargs="+", choices=SCENES, default=TASKS)
    parser.add_argument(
        "--horizons", nargs="+", default=["static:20", "tail_agreement:t=0.8,h_min=5"]
    )
    parser.add_argument("--lead", nargs="+", type=int, default=[0, 5, 10, 15], help="actions")
    parser.add_argument("--disturbance", type=float, default=0.0, help="action units")
    parser.add_argument("--episodes", type=int, default=40, help="of each task in a cell")
    arguments = parser.parse_args()

    import torch

    from kairos_ros.lab.training.bench import arms
    from kairos_ros.lab.training.rollout import PolicyUnderTest, run_episodes

    torch.set_num_threads(1)
    sides = {
        "plain": PolicyUnderTest(arguments.policy),
        "guided": PolicyUnderTest(arguments.policy, rtc=True),
    }
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.episodes)
    print("| horizon | lead | | success % | seam | inside a chunk | rounds per episode |")
    print("|---|---|---|---|---|---|---|")
    for rule in arguments.horizons:
        for lead in arguments.lead:
            found: dict[str, list[EpisodeResult]] = {side: [] for side in sides}
            for task in arguments.tasks:
                for side, policy in sides.items():
                    found[side] += run_episodes(
                        policy,
                        task,
                        seeds,
                        parse_horizon(rule),
                        arms(task),
                        arguments.disturbance,
                        lead,
                    )
            for side, episodes in found.items():
                success = 100 * np.mean([episode.success for episode in episodes])
                seam = np.mean([jump for episode in episodes for jump in episode.seams] or [np.nan])
                step = np.mean([jump for episode in episodes for jump in episode.steps] or [np.nan])
                rounds = np.mean([episode.rounds for episode in episodes])
                print(
                    f"| {rule} | {lead} | {side} | {success:.1f} | {seam:.2f} | {step:.2f} "
                    f"| {rounds:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
