"""What a decision of a critic costs, beside those of other horizon policies.

    python -m bench critic [--state 39] [--chunk 50] [--dims 4]

CPU time of the thread, so that what else runs on the machine counts less; the least and the median
of repeated runs. The critic has the shape of those that `kairos calibrate --critic` makes, and
weights drawn at random, which cost the same.
"""

import argparse
import time
from itertools import pairwise

import numpy as np

from kairos_ros.core.horizons.critic import BINS, ByRisk, Critic
from kairos_ros.core.horizons.policies import HorizonContext, HorizonPolicy, parse_horizon
from kairos_ros.lab.horizons.critic_fit import MEMBERS, WIDTH

HORIZONS = (5, 10, 15, 20, 30, 40, 50)
CALLS = 500
REPEATS = 15


def drawn_critic(rng: np.random.Generator, state: int, dims: int) -> Critic:
    inputs = state + BINS * dims + 2
    layers = tuple(
        (
            rng.normal(0, 0.1, (MEMBERS, a, b)).astype(np.float32),
            np.full((MEMBERS, 1, b), -3.0, np.float32),
        )
        for a, b in pairwise((inputs, WIDTH, WIDTH, len(HORIZONS) - 1))
    )
    mean, spread = np.zeros(inputs, np.float32), np.ones(inputs, np.float32)
    return Critic(HORIZONS, 0.05, np.zeros(dims, np.float32), mean, spread, layers)


def measure(
    policy: HorizonPolicy, updates: np.ndarray, chunk: np.ndarray, context: HorizonContext
) -> list[float]:
    """Microseconds per decision, of every repetition."""
    taken = []
    for _ in range(REPEATS):
        started = time.thread_time()
        for _ in range(CALLS):
            policy(updates, chunk, context)
        taken.append((time.thread_time() - started) / CALLS * 1e6)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench critic", description=__doc__)
    parser.add_argument("--state", type=int, default=39, help="Entries of the robot's state.")
    parser.add_argument("--chunk", type=int, default=50, help="Actions of a chunk.")
    parser.add_argument("--dims", type=int, default=4, help="Entries of an action.")
    asked = parser.parse_args()
    if asked.chunk < HORIZONS[-1]:
        parser.error(f"--chunk is at least {HORIZONS[-1]}, the longest horizon")
    rng = np.random.default_rng(0)
    chunk = rng.normal(size=(asked.chunk, asked.dims)).astype(np.float32)
    updates = rng.normal(size=(10, *chunk.shape)).astype(np.float32)
    state = rng.normal(size=asked.state).astype(np.float32)
    context = HorizonContext("", 2, chunk[: asked.chunk // 2] + 0.1, state=state)
    policies = {name: parse_horizon(name) for name in ("static", "confidence", "tail_agreement")}
    policies["critic"] = ByRisk(drawn_critic(rng, asked.state, asked.dims), 5)
    for name, policy in policies.items():
        taken = measure(policy, updates, chunk, context)
        print(f"{name:16}{min(taken):6.1f} us at least, {np.median(taken):6.1f} us median")


if __name__ == "__main__":
    main()
