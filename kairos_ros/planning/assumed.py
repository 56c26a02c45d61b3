"""Load profiles of models that nobody has measured here, from how long a batch takes.

Latencies under load are those of a queue that is simulated: requests arrive at random (Poisson),
as they do from many robots that do not wait for each other. Discrete batching serves what waits, up
to a batch, and never waits to fill one, as the serving node does. Continuous batching lets requests
join and leave, and all in flight advance at the same speed, as in vLLM.
"""

import heapq
import math
import re
from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.load_profile import RATES, Floats, LoadProfile, load_of
from kairos_ros.core.pipeline import Component

ARRIVALS = 20_000
"""Simulated requests per rate."""
WARM_UP = 0.1
"""Share of them that is not counted."""
_LINE = re.compile(r"(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?)b")


def batch_line(text: str) -> tuple[float, float]:
    """`31+10b`: seconds per batch and per request in it, given in ms. Raises ConfigError."""
    match = _LINE.fullmatch(text)
    if match is None or not any(float(number) for number in match.groups()):
        raise ConfigError(
            f"{text!r} is no line such as 31+10b: milliseconds per batch + milliseconds per request"
        )
    base, row = (float(number) / 1e3 for number in match.groups())
    return base, row


def assumed_profile(
    model: str,
    components: Sequence[Component],
    device: str,
    line: str,
    batches: Sequence[int],
    memory_mib: float,
    memory_per_request_mib: float = 0.0,
    batching: Literal["discrete", "continuous"] = "discrete",
    spread: float = 0.05,
    basis: str = "",
    arrivals: int = ARRIVALS,
) -> LoadProfile:
    """A profile whose batches take what `line` says.

    Args:
        batches: batchings to offer; with continuous batching, how many requests may be in flight.
        memory_mib: of the weights and of whatever does not depend on the batch.
        spread: standard deviation of the logarithm of a batch's, or of a request's, time.

    Raises ConfigError for numbers that make no sense.
    """
    base, row = batch_line(line)
    largest = max(batches, default=0)
    if not batches or min(batches) < 1 or largest > 1024:
        raise ConfigError(f"batches {list(batches)}: give numbers from 1 to 1024")
    sizes = tuple(sorted({1, *(2**i for i in range(11) if 2**i <= largest), *batches}))
    service = tuple(base + row * size for size in sizes)
    loads = []
    for batch in sorted(set(batches)):
        seconds = np.array([0.0, *(base + row * n for n in range(1, batch + 1))])
        top = max(n / seconds[n] for n in range(1, batch + 1))
        rates = [top * (i + 1) / RATES for i in range(RATES)]
        run = batch_queue if batching == "discrete" else shared_queue
        latencies = [
            run(rate, seconds, spread, arrivals, seed=i)[round(WARM_UP * arrivals) :]
            for i, rate in enumerate(rates)
        ]
        memory = memory_mib + memory_per_request_mib * batch
        loads.append(load_of(batch, memory, rates, latencies))
    told = f"batches take {line} ms, spread {spread:g}, Poisson arrivals, {arrivals} per rate"
    return LoadProfile(
        model=model,
        version="assumed",
        components=tuple(components),
        device=device,
        machine="none: assumed",
        source="assumed",
        basis=f"{basis}; {told}" if basis else told,
        batching=batching,
        sizes=sizes,
        service_s=_rounded(service),
        loads=tuple(loads),
    )


def batch_queue(rate_hz: float, seconds: Floats, spread: float, arrivals: int, seed: int) -> Floats:
    """Latencies [arrivals] in s of a server that takes what waits, up to a batch.

    seconds [n + 1]: of a batch of that many; the last index is the largest batch.
    """
    draw = np.random.default_rng(seed)
    arrived = np.cumsum(draw.exponential(1 / rate_hz, arrivals))
    factors = np.exp(spread * draw.standard_normal(arrivals))
    latency = np.empty(arrivals)
    largest = len(seconds) - 1
    first, now, batch = 0, 0.0, 0
    while first < arrivals:
        now = max(now, arrived[first])
        waiting = int(np.searchsorted(arrived[first : first + largest], now, side="right"))
        now += seconds[waiting] * factors[batch]
        latency[first : first + waiting] = now - arrived[first : first + waiting]
        first += waiting
        batch += 1
    return latency


def shared_queue(
    rate_hz: float, seconds: Floats, spread: float, arrivals: int, seed: int
) -> Floats:
    """Latencies [arrivals] in s of a server whose requests in flight advance at one speed.

    seconds [n + 1]: what a request takes while so many are in flight; those beyond wait.
    """
    draw = np.random.default_rng(seed)
    arrived = np.cumsum(draw.exponential(1 / rate_hz, arrivals)).tolist()
    work = np.exp(spread * draw.standard_normal(arrivals)).tolist()
    latency = np.empty(arrivals)
    most = len(seconds) - 1
    flight: list[tuple[float, int]] = []
    waiting: deque[int] = deque()
    done, now, next_arrival, served = 0.0, 0.0, 0, 0
    while served < arrivals:
        pace = 1 / seconds[len(flight)] if flight else 0.0
        ends = now + (flight[0][0] - done) / pace if flight else math.inf
        arrives = arrived[next_arrival] if next_arrival < arrivals else math.inf
        at = min(ends, arrives)
        done += pace * (at - now)
        now = at
        if ends <= arrives:
            _, request = heapq.heappop(flight)
            latency[request] = now - arrived[request]
            served += 1
            if waiting:
                request = waiting.popleft()
                heapq.heappush(flight, (done + work[request], request))
            continue
        if len(flight) < most:
            heapq.heappush(flight, (done + work[next_arrival], next_arrival))
        else:
            waiting.append(next_arrival)
        next_arrival += 1
    return latency


def _rounded(values: Floats | Sequence[float]) -> tuple[float, ...]:
    """To six digits: files stay readable."""
    return tuple(float(f"{value:.6g}") for value in values)
