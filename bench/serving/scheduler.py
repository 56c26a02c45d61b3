"""Scheduling decisions per second against the number of pending requests, per policy.

    python -m bench scheduler [--json FILE]

One edge and one cloud engine, every task with four recorded rounds and some skips: the state of a
fleet in overload. A decision includes collecting the pending requests from their task keys.
Medians of repeated runs, policies interleaved; "p90" is the slow end on this machine.
"""

import argparse
import json
import time
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np

from kairos_ros.core.placement.overflow import Capacity, EngineCapacity
from kairos_ros.core.scheduling.decision import Pending
from kairos_ros.core.scheduling.policies import BUILTIN, parse_scheduling
from kairos_ros.core.tasks import TaskTable

MS = 1_000_000
PENDING = (100, 1_000, 10_000)
REPEATS = 60
LATENCY = tuple((80 + 35 * b) * MS for b in range(1, 9))
CAPACITY = Capacity(
    (
        EngineCapacity("edge", "edge", 8, LATENCY),
        EngineCapacity("cloud", "cloud", 8, LATENCY, network_ns=100 * MS),
    )
)


def overloaded_fleet(tasks_pending: int) -> tuple[TaskTable, dict[Hashable, int], int, float]:
    """A table, arrival times by task, now, and the seconds that one recorded interval took."""
    rng = np.random.default_rng(0)
    tasks = TaskTable()
    arrival: dict[Hashable, int] = {}
    spent = 0.0
    for key in range(tasks_pending):
        clock = int(rng.integers(0, 20_000)) * MS
        row = tasks.open(key, clock, kind=str(key % 8))
        tasks.skipped[row] = rng.integers(0, 12)
        lengths = rng.integers((0, 50, 100), (500, 300, 1600), size=(4, 3)).tolist()
        for j, (wait, generate, execute) in enumerate(lengths):
            g = clock + wait * MS
            e = g + generate * MS
            clock = e + execute * MS
            before = time.perf_counter()
            tasks.generation(key, j, g, e)
            tasks.execution(key, j, e, clock)
            spent += time.perf_counter() - before
        arrival[key] = clock
    return tasks, arrival, max(arrival.values()), spent / (8 * tasks_pending)


def measure(pending: int) -> list[dict[str, float | int | str]]:
    tasks, arrival, now, record_s = overloaded_fleet(pending)
    policies = {name: parse_scheduling(name) for name in BUILTIN}
    times: dict[str, list[float]] = {name: [] for name in policies}
    for _ in range(REPEATS):
        for name, policy in policies.items():
            before = time.perf_counter()
            policy.decide(now, Pending.of(tasks, arrival), tasks, CAPACITY)
            times[name].append(time.perf_counter() - before)
    return [
        {
            "pending": pending,
            "policy": name,
            "median_ms": float(np.median(seconds)) * 1e3,
            "p90_ms": float(np.quantile(seconds, 0.9)) * 1e3,
            "decisions_per_s": 1 / float(np.median(seconds)),
            "record_interval_us": record_s * 1e6,
        }
        for name, seconds in times.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    arguments = parser.parse_args(argv)
    rows = [row for pending in PENDING for row in measure(pending)]
    print(f"{'pending':>8} {'policy':<14} {'median ms':>10} {'p90 ms':>8} {'decisions/s':>12}")
    for row in rows:
        print(
            f"{row['pending']:>8} {row['policy']:<14} {row['median_ms']:>10.3f} "
            f"{row['p90_ms']:>8.3f} {row['decisions_per_s']:>12.0f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
