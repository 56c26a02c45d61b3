"""Which recorded tasks arrive when."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.runs.trace import Trace


@dataclass(frozen=True, slots=True)
class TraceTask:
    """One task for the fleet."""

    number: int
    trace: Trace
    wanted_s: float | None = None
    """When it arrives, seconds since the run began; None: when a robot takes it."""


def trace_tasks(
    traces: Sequence[Trace], seed: int, rate: float | None, tasks: int | None
) -> Iterator[TraceTask]:
    """Tasks drawn in seeded rounds over all traces, each trace once per round.

    rate: Poisson arrivals per second (online); None: back to back (offline). tasks: how many; None:
    without end. Raises ConfigError without traces or for a rate that is not positive.
    """
    if not traces:
        raise ConfigError("there are no traces to take tasks from")
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise ConfigError(f"the rate must be positive, in tasks per second, not {rate}")
    if tasks is not None and tasks < 1:
        raise ConfigError(f"the number of tasks must be at least 1, not {tasks}")
    endless = _endless(traces, random.Random(f"{seed}/tasks"), random.Random(f"{seed}/gaps"), rate)
    return islice(endless, tasks)


def _endless(
    traces: Sequence[Trace], order: random.Random, gaps: random.Random, rate: float | None
) -> Iterator[TraceTask]:
    deck: list[Trace] = []
    wanted_s = 0.0
    for number in count():
        if not deck:
            deck = list(traces)
            order.shuffle(deck)
        if rate is not None:
            wanted_s += gaps.expovariate(rate)
        yield TraceTask(number, deck.pop(), wanted_s if rate is not None else None)
