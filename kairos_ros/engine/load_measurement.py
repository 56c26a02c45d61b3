"""How long a policy takes to answer under load: measured through its worker, in the batches that a
serving node would form."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from kairos_ros.core.load_profile import RATES, Floats, Load, load_of
from kairos_ros.core.profile import EngineProfile
from kairos_ros.engine.profiling import ProfiledEngine, sample_request

LEAST_REQUESTS = 20
"""Measured per rate, however long they take."""


def measure_loads(
    engine: ProfiledEngine,
    profile: EngineProfile,
    instruction: str,
    per_rate_s: float,
    advance: Callable[[str], None],
) -> tuple[Load, ...]:
    """For each of the profile's batch sizes up to saturation: 10 % to 100 % of the most that it
    answers, at random times. What waits is served, up to a batch, and no batch waits to be filled.

    Raises PolicyError when a batch fails.
    """
    described = engine.description
    largest = max(profile.useful_batches)
    rows = [sample_request(described, row, instruction) for row in range(largest)]
    loads = []
    for cap in profile.useful_batches:
        top = max(size / profile.latency_s(size) for size in range(1, cap + 1))
        rates = [top * (i + 1) / RATES for i in range(RATES)]
        latencies = []
        for i, rate in enumerate(rates):
            advance(f"batches up to {cap}, {rate:.3g} requests/s")
            latencies.append(_open_loop(engine, rows[:cap], rate, per_rate_s, seed=i))
        loads.append(load_of(cap, described.memory_mib, rates, latencies))
    return tuple(loads)


def _open_loop(
    engine: ProfiledEngine, rows: Sequence[object], rate_hz: float, seconds: float, seed: int
) -> Floats:
    count = max(LEAST_REQUESTS, round(rate_hz * seconds))
    due = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_hz, count))
    latency = np.empty(count)
    began, first = time.perf_counter(), 0
    while first < count:
        time.sleep(max(0.0, began + due[first] - time.perf_counter()))
        now = time.perf_counter() - began
        waiting = int(np.searchsorted(due[first : first + len(rows)], now, side="right"))
        engine.infer(rows[:waiting])  # type: ignore[arg-type]
        latency[first : first + waiting] = (
            time.perf_counter() - began - due[first : first + waiting]
        )
        first += waiting
    return latency
