"""Fleets in virtual time, for tests of what is done with their runs."""

import random
from itertools import accumulate

from kairos_ros.core.profile import EngineProfile
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.lab.sim.arrivals import trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.sim_engine import SimEngine
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.recording.runs.trace import Trace, TraceRound
from kairos_ros.serving.options import ServingOptions

SCENES = ("reach-v3", "push-v3", "drawer-open-v3")
BATCHES = (1, 2, 4)
BATCH_S = (0.1, 0.11, 0.13)


def simulated_run(robots: int, length_s: float, scheduling: str, horizon: int = 0) -> FleetRun:
    """Back-to-back tasks on one engine that saturates at four robots per 0.13 s.

    Chunks of 50 are cut to `horizon` actions, or to 10–40 where it is 0. About 3 s per task.
    """
    profile = EngineProfile("p", "test", "cpu", "float32", BATCHES, BATCH_S, BATCH_S, BATCH_S)
    serving = ServingOptions(parse_scheduling(scheduling), horizon_policy="static:1")
    fleet = FleetOptions(robots, Rules(), open_s=length_s)
    traces = [_trace(number, horizon) for number in range(24)]
    return simulate(
        trace_tasks(traces, 1, None, None), fleet, serving, [SimEngine("edge", profile)], 1
    )


def _trace(number: int, horizon: int) -> Trace:
    chosen = random.Random(number)
    left, lengths = chosen.randint(60, 130), []
    while left > 0:
        lengths.append(min(left, horizon or chosen.randint(10, 40)))
        left -= lengths[-1]
    starts = accumulate(lengths, initial=0)
    return Trace(
        name=f"t{number}",
        kind=SCENES[number % len(SCENES)],
        instruction="do it",
        seed=number,
        control_rate_hz=30.0,
        chunk_size=50,
        action_dim=1,
        policy="p",
        horizon_policy=f"static:{horizon}" if horizon else "varied",
        success=number % 7 != 3,
        duration_s=sum(lengths) / 30,
        rounds=tuple(
            TraceRound(j, at, at, n, n)
            for j, (at, n) in enumerate(zip(starts, lengths, strict=False), 1)
        ),
    )
