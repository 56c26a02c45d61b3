"""Which engine serves which request: edge first, overflow to the cloud where it is sooner.

Phase 3 of Algorithm 1 (Dai et al. §3.2.3). Estimates are integer nanoseconds from now.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

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
    history_ns: tuple[int, ...] = ()
    """[n] per pending request, what its upload takes longer because this engine has not seen its
    task's history; empty: nothing, as for every stateless policy. In the cloud only: the serving
    node, through which all observations pass, is the edge."""
    policy: str = ""
    """That it serves, where the engines of a server serve several."""
    device: str = ""
    """What computes its batches, one at a time with those of all engines of this device; empty: a
    device of its own."""

    def __post_init__(self) -> None:
        if not self.latency_ns:
            raise ConfigError(f"engine {self.engine!r}: latency_ns is empty; it needs a profile")
        if not 0 <= self.free <= len(self.latency_ns):
            raise ConfigError(
                f"engine {self.engine!r}: {self.free} free slots, but its largest batch is "
                f"{len(self.latency_ns)}"
            )
        times = (self.residual_ns, self.network_ns, self.transfer_ns, *self.history_ns)
        if min((*self.latency_ns, *times)) < 0:
            raise ConfigError(f"engine {self.engine!r}: a time is negative: {self}")
        if self.history_ns and self.tier == "edge":
            raise ConfigError(f"engine {self.engine!r}: history_ns is of engines in the cloud")

    def history_of(self, request: int) -> int:
        """What the history of this pending request adds to its upload."""
        return self.history_ns[request] if self.history_ns else 0

    def completion_ns(self, batch: int, history_ns: int = 0) -> int:
        """When the answers of its next batch are here, if the histories that come with it take so
        long. The upload overlaps what computes now."""
        upload = self.network_ns - self.network_ns // 2 + history_ns + batch * self.transfer_ns
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
    room = _CloudRoom(cloud, rest)
    waits = _edge_estimates(edge, counts, len(rest), delay_only=printed) if room.left else []
    taken = overflow(waits, room, len(rest), queue="all" if printed else "left")
    at_cloud = np.zeros(len(rest), bool)
    at_cloud[taken] = True
    batches = _batches(edge, slots, order) + _batches(cloud, room.engine_of, rest[at_cloud])
    left_positions = np.flatnonzero(~at_cloud)

    def both(position: int) -> str:
        here = waits[position if printed else position - bisect_left(taken, position)]
        edge_text = f"{here / 1e9:.2f} s at the edge" if here < NO_EDGE else "no edge engine"
        return f"{room.offers[position] / 1e9:.2f} s there, {edge_text}"

    def explain_cloud(c: int) -> str:
        return both(taken[c])

    def explain_left(p: int) -> str:
        position = int(left_positions[p])
        if not cloud:
            return "edge full" if edge else "no engine"
        if position >= len(room.offers):
            return "edge and cloud full"
        return f"edge full, cloud no sooner ({both(position)})"

    return Placement(tuple(batches), rest[~at_cloud], explain_left, explain_cloud)


class Offers(Protocol):
    """A tier that requests overflow to, as it fills."""

    def offer(self, position: int) -> float | None:
        """Latency of the request at this position if it were sent there now; None: it is full."""

    def take(self, position: int) -> None:
        """The request that was offered for last is sent there."""


def overflow(
    edge: Sequence[float], cloud: Offers, requests: int, queue: Literal["all", "left"] = "left"
) -> list[int]:
    """Positions, of `requests` that found no edge slot, that go to the cloud.

    edge[q]: estimate for queue position q at the edge, counting all requests before this one (as
    printed) or only those left to the edge.
    """
    taken: list[int] = []
    for position in range(requests):
        latency = cloud.offer(position)
        if latency is None:
            break
        if latency < edge[position if queue == "all" else position - len(taken)]:
            cloud.take(position)
            taken.append(position)
    return taken


class _CloudRoom:
    """The cloud's free slots. A request is offered the engine that would answer it soonest, with
    all that was sent there before it."""

    def __init__(self, engines: list[EngineCapacity], requests: Ints) -> None:
        self._engines = engines
        self._requests = requests
        self._filled = [0] * len(engines)
        self._history_ns = [0] * len(engines)
        self._alike = not any(engine.history_ns for engine in engines)
        """Every request is offered the same."""
        self._soonest: tuple[int, int] | None = None
        self.left = sum(engine.free for engine in engines)
        self.offers: list[int] = []
        """By position, as far as there was room."""
        self.engine_of: list[int] = []
        """Of the requests that were sent, in order."""

    def offer(self, position: int) -> int | None:
        if not self.left:
            return None
        if self._soonest is None or not self._alike:
            request = int(self._requests[position])
            self._soonest = min(
                (engine.completion_ns(filled + 1, before + engine.history_of(request)), e)
                for e, (engine, filled, before) in enumerate(
                    zip(self._engines, self._filled, self._history_ns, strict=True)
                )
                if filled < engine.free
            )
        self.offers.append(self._soonest[0])
        return self._soonest[0]

    def take(self, position: int) -> None:
        assert self._soonest is not None
        e = self._soonest[1]
        self._filled[e] += 1
        self._history_ns[e] += self._engines[e].history_of(int(self._requests[position]))
        self._soonest = None
        self.left -= 1
        self.engine_of.append(e)


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
        done = delay + latency[q % size] + engine.network_ns
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
