"""What a soak measures, and what it may not find."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bench.support.process_growth import MEASURES, MEMORY, Sample, Slope, slope
from bench.support.robot_counts import Totals

CYCLE_S = 600.0
"""Every fault happens once in so long."""
CUT_S = 20.0
TURN_S = 7.0
"""Between a robot that leaves and one that comes."""
ENDS_S = 600.0
"""The round trips of the first and the last so many seconds are compared."""
SETTLED_S = 120.0
"""What a process is given after its start, before it is held to be flat."""
EDGE, CUT, CLOUD, HOST = "edge worker killed", "link cut", "cloud worker killed", "ten robots lost"

SECOND_HALF = "memory_mb, second half of each life"
"""By this, memory is judged: pools and queues fill up to the busiest moment so far, and stay so."""


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    name: str


@dataclass(frozen=True, slots=True)
class Timetable:
    """What happens when. Shorter runs than a cycle have the whole of it, closer together."""

    length_s: float

    @property
    def pace(self) -> float:
        return min(1.0, self.length_s / CYCLE_S)

    @property
    def cut_s(self) -> float:
        return max(3.0, CUT_S * self.pace)

    @property
    def turn_s(self) -> float:
        return max(1.0, TURN_S * self.pace)

    @property
    def settled_s(self) -> float:
        return SETTLED_S * self.pace

    @property
    def ends_s(self) -> float:
        return min(ENDS_S, self.length_s / 2)

    def faults(self) -> Iterator[Fault]:
        order = (EDGE, CUT, CLOUD, HOST)
        step_s = CYCLE_S * self.pace / len(order)
        for n in range(round(self.length_s / step_s)):
            yield Fault((n + 0.5) * step_s, order[n % len(order)])


@dataclass(slots=True)
class Interval:
    """The time between two reports."""

    at_s: float
    """Its end, since the first request."""
    robots: int
    cloud: int
    acted: int
    held: int
    late_p99_ms: float
    trips_ms: np.ndarray

    def written(self) -> dict[str, Any]:
        told = asdict(self)
        trips_ms = told.pop("trips_ms")
        return told | {
            "chunks": len(trips_ms),
            "p50_ms": percentile(trips_ms, 50),
            "p99_ms": percentile(trips_ms, 99),
        }


@dataclass(slots=True)
class Outcome:
    """All that was measured."""

    timetable: Timetable
    totals: Totals = field(default_factory=Totals)
    intervals: list[Interval] = field(default_factory=list)
    happened: list[Fault] = field(default_factory=list)
    processes: dict[str, list[Sample]] = field(default_factory=dict)
    cut_off: int = 0
    """Robots whose host was lost."""
    came: int = 0
    left: int = 0
    interrupted: bool = False

    def p99_ms(self, from_s: float, to_s: float) -> float:
        within = [i.trips_ms for i in self.intervals if from_s < i.at_s <= to_s]
        return percentile(np.concatenate(within), 99) if within else float("nan")

    def ends_p99_ms(self) -> tuple[float, float]:
        """Of the first and the last part, faults included."""
        last_s = self.intervals[-1].at_s
        ends_s = self.timetable.ends_s
        return self.p99_ms(0.0, ends_s), self.p99_ms(last_s - ends_s, last_s)

    def slopes(self) -> dict[str, dict[str, Slope | None]]:
        """Process -> measure -> its slope; memory also over the second half of each life alone."""
        settled_s = self.timetable.settled_s
        return {
            name: {measure: slope(samples, measure, settled_s) for measure in MEASURES}
            | {SECOND_HALF: slope(samples, MEMORY, settled_s, left_out=0.5)}
            for name, samples in self.processes.items()
        }

    def problems(self) -> list[str]:
        """What must not be, in words."""
        found = []
        if self.totals.unanswered:
            found.append(f"{self.totals.unanswered} requests were never answered")
        if self.totals.wrong:
            found.append(f"{self.totals.wrong} answers were wrong")
        for name, measures in self.slopes().items():
            for measure, one in measures.items():
                if measure != MEMORY and one is not None and not one.flat:
                    grows = f"{one.per_hour:+.2f} ({one.low:+.2f} to {one.high:+.2f})"
                    found.append(f"{name}: {measure} grows by {grows} per hour, of {one.level:.1f}")
        return found


def percentile(values: Any, q: float) -> float:
    """NaN of nothing."""
    return float(np.percentile(values, q)) if len(values) else float("nan")
