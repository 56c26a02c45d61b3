"""How long virtual time takes: fleets of several sizes on assumed pi05-size engines.

    python -m bench.simulate                        # five fleets, from 10 to 10,000 robots
    python -m bench.simulate --robots 100 --hours 1 # one fleet

One engine serves about 11 robots that never stall (22 requests/s, two per robot and second), so a
fleet larger than that per engine is overloaded: the worst case for the scheduler, whose queue then
holds nearly the whole fleet.
"""

import argparse
import time

from kairos_ros.core.scheduling import parse_scheduling
from kairos_ros.evaluation.replay.arrivals import jobs
from kairos_ros.evaluation.replay.rules import Rules
from kairos_ros.evaluation.replay.sim_engine import SimEngine
from kairos_ros.evaluation.replay.simulate import FleetOptions, simulate
from kairos_ros.evaluation.workloads import workload
from kairos_ros.serving.dispatcher import ServingOptions

CASES = ((10, 1, 1.0), (100, 1, 1.0), (100, 8, 1.0), (1000, 8, 0.05), (10_000, 8, 0.01))
"""(robots, engines, hours in which robots take tasks)"""


def measure(robots: int, engines: int, hours: float, scheduling: str, seed: int) -> str:
    """One line: what was simulated, and the CPU time that it took."""
    work = workload("pi05-libero")
    began = time.process_time()
    run = simulate(
        jobs(work.traces, seed, None, None),
        FleetOptions(robots, Rules(), open_s=hours * 3600),
        ServingOptions(parse_scheduling(scheduling), "static:10", max_queue=10 * robots),
        [SimEngine(f"edge_{i}", work.profile) for i in range(engines)],
        seed,
    )
    cpu_s = time.process_time() - began
    sent = sum(r.attempts for r in run.rounds)
    return (
        f"{robots:6d} robots, {engines:3d} engines, {run.length_s / 3600:5.2f} h until the last "
        f"task ended: {cpu_s:6.1f} s CPU, {run.length_s / cpu_s:7.0f} x real time, "
        f"{len(run.rounds):7d} rounds, {sent:7d} requests, {1e6 * cpu_s / sent:4.0f} us/request"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robots", type=int, help="one fleet of this size instead")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--hours", type=float, default=1.0, help="virtual hours")
    parser.add_argument("--scheduling", default="wait_ratio")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    cases = [(given.robots, given.engines, given.hours)] if given.robots else CASES
    for case in cases:
        print(measure(*case, given.scheduling, given.seed), flush=True)


if __name__ == "__main__":
    main()
