"""How long virtual time takes: fleets of several sizes on assumed engines of 80 + 35 b ms.

    python -m bench simulate                        # five fleets, from 10 to 10,000 robots
    python -m bench simulate --robots 100 --hours 1 # one fleet, back to back

Back to back, a hundred robots ask one engine for several times what it can do, and nearly the whole
fleet is queued: the worst case for the scheduler. Online, tasks arrive at load 1.
"""

import argparse
import time

from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.lab.sim.arrivals import trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.sim_engine import SimEngine
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.lab.sim.workloads import workload
from kairos_ros.serving.options import ServingOptions

CASES = (
    (10, 1, None, 1.0),
    (100, 1, None, 1.0),
    (100, 1, 1.0, 1.0),
    (1000, 10, 1.0, 1 / 12),
    (10_000, 100, 1.0, 1 / 120),
)
"""(robots, engines, load or None for back to back, hours in which robots take tasks)"""


def measure(
    robots: int, engines: int, load: float | None, hours: float, scheduling: str, seed: int
) -> str:
    """One line: what was simulated, and the CPU time that it took."""
    work = workload("pi05-libero")
    rate = None if load is None else engines * work.arrival_rate(load)
    began = time.process_time()
    run = simulate(
        trace_tasks(work.traces, seed, rate, None),
        FleetOptions(robots, Rules(), open_s=hours * 3600),
        ServingOptions(parse_scheduling(scheduling), "static:10", max_queue=10 * robots),
        [SimEngine(f"edge_{i}", work.profile) for i in range(engines)],
        seed,
    )
    cpu_s = time.process_time() - began
    arrivals = "back to back" if load is None else f"load {load:g}"
    return (
        f"{robots:6d} robots, {engines:3d} engines, {arrivals:>12}, {run.length_s / 60:5.1f} min: "
        f"{cpu_s:6.1f} s CPU, {run.length_s / cpu_s:7.1f} x real time, {len(run.tasks):5d} tasks, "
        f"{len(run.rounds):6d} rounds, {1e6 * cpu_s / len(run.rounds):4.0f} us/round"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--robots", type=int, help="one fleet of this size instead")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--load", type=float, help="online, at this load; default: back to back")
    parser.add_argument("--hours", type=float, default=1.0, help="virtual hours")
    parser.add_argument("--scheduling", default="wait_ratio")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    one = (given.robots, given.engines, given.load, given.hours)
    cases = [one] if given.robots else CASES
    for case in cases:
        robots, engines, load, hours = case
        line = measure(robots, engines, load, hours, given.scheduling, given.seed)
        print(line, flush=True)


if __name__ == "__main__":
    main()
