"""What comparing commanded and achieved motion costs a robot, per control period.

    python -m bench surprise [--joints 14]

CPU time of the thread, so that what else runs on the machine counts less; the least and the median
of repeated runs over the same motion. With what the rule learns, spread over the periods.
"""

import argparse
import time

import numpy as np

from kairos_ros.core.horizons.surprise import Joint, parse_surprise

PERIODS = 4096
REPEATS = 15


def measure(joints: int) -> list[float]:
    """Microseconds per period, of every repetition."""
    rng = np.random.default_rng(0)
    t = np.arange(PERIODS)[:, None] / 30
    commands = np.sin(t * rng.uniform(0.5, 3, joints)).astype(np.float32)
    states = np.concatenate([commands[:1], commands[:-1]]) + rng.normal(0, 1e-3, commands.shape)
    states = states.astype(np.float32)
    watch = parse_surprise("tracking").watch(
        [Joint(f"joint_{i}", i, i, position=True) for i in range(joints)]
    )
    taken = []
    for _ in range(REPEATS):
        watch.begin()
        started = time.thread_time()
        for command, state in zip(commands, states, strict=True):
            watch.step(command, state)
        taken.append((time.thread_time() - started) / PERIODS * 1e6)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench surprise", description=__doc__)
    parser.add_argument("--joints", type=int, nargs="*", default=[3, 6, 14], metavar="N")
    for joints in parser.parse_args().joints:
        taken = measure(joints)
        print(
            f"{joints:3} joints: {min(taken):5.1f} us at least, {np.median(taken):5.1f} us median"
        )


if __name__ == "__main__":
    main()
