"""Which engine serves which request: edge first, overflow to the cloud where it is sooner.

Phase 3 of Algorithm 1 (000 §3.2.3). Estimates are integer nanoseconds from now.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import ConfigError

Ints = NDArray[np.int64]
Tier = Literal["edge", "cloud"]
NO_EDGE = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """One engine as it is now. Raises ConfigError for numbers that make no sense."""

    engine: str
    tier: Tier
    free: int
    """Requests it takes now, at most one full batch; 0 while it is busy or down."""
    latency_ns: tuple[int, ...]
    """Compute time of batches of 1, 2, … requests (`EngineProfile.latencies_ns`); its length is
    the largest batch worth forming."""
    residual_ns: int = 0
    """Until the batch that it computes now is done."""
    network_ns: int = 0
    """Round trip between serving node and engine."""
    transfer_ns: int = 0
    """What the upload of one more request takes."""
    history_ns: int = 0
    """Transfer of a stateful policy's history to this engine, 0 for stateless ones."""

    def __post_init__(self) -> None:
        if not self.latency_ns:
            raise ConfigError(f"engine {self.engine!r}: latency_ns is empty; it needs a profile")
        if not 0 <= self.free <= len(self.latency_ns):
            raise ConfigError(
                f"engine {self.engine!r}: {self.free} free slots, but its largest batch is "
                f"{len(self.latency_ns)}"
            )
        times = (self.residual_ns, self.network_ns, self.transfer_ns, self.history_ns)
        if min((*self.latency_ns, *times)) < 0:
            raise ConfigError(f"engine {self.engine!r}: a time is negative: {self}")

    def completion_ns(self, batch: int) -> int:
        """When the answers of its next batch are here. The upload overlaps what computes now."""
        upload = self.network_ns - self.network_ns // 2 + self.history_ns + batch * self.transfer_ns
        return max(self.residual_ns, upload) + self.latency_ns[batch - 1] + self.network_ns // 2


@dataclass(frozen=True, slots=True)
class Capacity:
    """All engines, and how a tier is chosen for what does not fit the edge now."""

    engines: tuple[EngineCapacity, ...]
    comparison: Literal["completion", "printed"] = "completion"
    """completion: cloud if its answer is here sooner than that of the edge's next free batch.
    printed: cloud if its latency is below the edge's queueing *delay*, as in Algorithm 1 line 17,
    which leaves out the edge's own compute time and so favours the edge."""

    def tier(self, tier: Tier) -> list[EngineCapacity]:
        return [engine for engine in self.engines if engine.tier == tier]


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests for one engine, most urgent first."""

    engine: str
    tier: Tier
    indices: Ints


@dataclass(frozen=True, slots=True)
class Placement:
    """Every request of the order is in exactly one batch or left."""

    batches: tuple[Batch, ...]
    left: Ints
    explain_left: Callable[[int], str] = field(compare=False)
    """Why the p-th left request waits."""
    explain_cloud: Callable[[int], str] = field(compare=False)
    """Why the c-th request that went to the cloud did."""


def place(order: Ints, capacity: Capacity) -> Placement:
    """Assigns requests in priority order to free engine slots.

    The edge's free slots are filled first, each by the engine that would answer soonest. A request
    beyond them goes to the cloud if it has room and is sooner by `capacity.comparison`; the loop
    skips one that is not, it does not stop.
    """
    edge, cloud = capacity.tier("edge"), capacity.tier("cloud")
    slots = _soonest_slots(edge)[: len(order)]
    rest = order[len(slots) :]
    counts = [slots.count(e) for e in range(len(edge))]
    printed = capacity.comparison == "printed"
    room = _soonest_slots(cloud)[: len(rest)]
    arrivals = _completions(cloud, room)
    waits = _edge_estimates(edge, counts, len(rest), delay_only=printed) if room else []
    taken = overflow(waits, arrivals, len(rest), len(room), queue="all" if printed else "left")
    at_cloud = np.zeros(len(rest), bool)
    at_cloud[taken] = True
    batches = _batches(edge, slots, order) + _batches(cloud, room[: len(taken)], rest[at_cloud])
    left_positions = np.flatnonzero(~at_cloud)

    def edge_estimate(position: int) -> int:
        return waits[position if printed else position - bisect_left(taken, position)]

    def explain_cloud(c: int) -> str:
        there, here = arrivals[c], edge_estimate(taken[c])
        edge_text = f"{here / 1e9:.2f} s at the edge" if here < NO_EDGE else "no edge engine"
        return f"{there / 1e9:.2f} s there, {edge_text}"

    def explain_left(p: int) -> str:
        position = int(left_positions[p])
        c = bisect_left(taken, position)
        if not cloud:
            return "edge full" if edge else "no engine"
        if c == len(room):
            return "edge and cloud full"
        return (
            f"edge full, cloud no sooner ({arrivals[c] / 1e9:.2f} s there, "
            f"{edge_estimate(position) / 1e9:.2f} s at the edge)"
        )

    return Placement(tuple(batches), rest[~at_cloud], explain_left, explain_cloud)


def overflow(
    edge: Sequence[float],
    cloud: Sequence[float],
    requests: int,
    room: int,
    queue: Literal["all", "left"] = "left",
) -> list[int]:
    """Positions, of `requests` that found no edge slot, that go to the cloud.

    cloud[c]: latency of the (c+1)-th request sent there. edge[q]: estimate for queue position q at
    the edge, counting all requests before this one (as printed) or only those left to the edge.
    """
    taken: list[int] = []
    for position in range(requests):
        if len(taken) == room:
            break
        ahead = position if queue == "all" else position - len(taken)
        if cloud[len(taken)] < edge[ahead]:
            taken.append(position)
    return taken


def _soonest_slots(engines: list[EngineCapacity]) -> list[int]:
    """Engine index of each free slot, in the order in which filling them answers soonest."""
    if len(engines) == 1:
        return [0] * engines[0].free
    slots = [
        (done, e)
        for e, engine in enumerate(engines)
        for done in np.maximum.accumulate(
            [engine.completion_ns(b + 1) for b in range(engine.free)] or [0]
        )[: engine.free].tolist()
    ]
    return [e for _, e in sorted(slots)]


def _completions(engines: list[EngineCapacity], slots: list[int]) -> list[int]:
    filled = [0] * len(engines)
    done = []
    for e in slots:
        filled[e] += 1
        done.append(engines[e].completion_ns(filled[e]))
    return done


def _edge_estimates(
    edge: list[EngineCapacity], counts: list[int], requests: int, *, delay_only: bool
) -> list[int]:
    """Ascending: the q-th is for the q-th request that queues behind what the edge takes now."""
    if not edge:
        return [NO_EDGE] * requests
    queues = []
    for engine, count in zip(edge, counts, strict=True):
        size = len(engine.latency_ns)
        latency = np.array(engine.latency_ns, np.int64)
        q = np.arange(requests)
        start = engine.residual_ns + (latency[count - 1] if count else 0)
        delay = start + (q // size) * latency[-1]
        done = delay + latency[q % size] + engine.network_ns + engine.history_ns
        queues.append(delay if delay_only else done)
    estimates: list[int] = np.sort(np.concatenate(queues))[:requests].tolist()
    return estimates


def _batches(engines: list[EngineCapacity], slots: list[int], indices: Ints) -> list[Batch]:
    engine_of = np.array(slots, np.int64)
    return [
        Batch(engine.engine, engine.tier, indices[: len(slots)][engine_of == e])
        for e, engine in enumerate(engines)
        if e in slots
    ]
