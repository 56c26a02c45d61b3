"""The scheduler's interface: pending requests in, a decision with its reasons out."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from kairos_ros.core.placement.overflow import Batch, Capacity, Placement, place
from kairos_ros.core.placement.policy_placement import place_policies
from kairos_ros.core.scheduling.wait_ratio import WaitReading
from kairos_ros.core.tasks import Ints, TaskTable


@dataclass(frozen=True, slots=True)
class Pending:
    """Requests that wait for an engine, at most one per task. Index i below is a position here."""

    rows: Ints
    """[n] row of each request's task in the TaskTable."""
    arrival_ns: Ints
    """[n] when each was received."""
    policies: tuple[str, ...] = ()
    """[n] which policy each asks for; empty: every engine serves all of them."""
    bound: tuple[str, ...] = ()
    """[n] with `policies`: the engine that has the state of each one's task; none: any may serve
    it."""
    ranks: tuple[int, ...] = ()
    """[n] requests of a lower rank come first, in whatever order a policy has them; empty: all are
    alike."""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(
        cls,
        tasks: TaskTable,
        arrival_ns: Mapping[Hashable, int],
        policies: tuple[str, ...] = (),
        bound: tuple[str, ...] = (),
        ranks: tuple[int, ...] = (),
    ) -> "Pending":
        """From task key -> arrival, in this order. Raises KairosError for a task not open."""
        arrivals = np.array(list(arrival_ns.values()), np.int64)
        return cls(tasks.rows_of(arrival_ns), arrivals, policies, bound, ranks)


@dataclass(frozen=True, slots=True)
class Decision:
    """Who is served now, by which engine, and why. Every request is in one batch or left."""

    order: Ints
    """[n] all requests, most urgent first."""
    placement: Placement
    skipped_after: Ints
    """[n] skip counter of each request's task after this decision (`TaskTable.set_skipped`): 0 if
    dispatched, else one more, unless nothing at all was dispatched."""
    explain: Callable[[int], str] = field(compare=False)
    """Why request i stands where it stands in the order, without the placement."""
    bucket: Ints | None = None
    """[n] wait ratio bucket after aging, for policies that have buckets."""

    @property
    def batches(self) -> tuple[Batch, ...]:
        return self.placement.batches

    @property
    def left(self) -> Ints:
        """Requests that wait on, most urgent first."""
        return self.placement.left

    def reason(self, i: int) -> str:
        """One line for an operator about request i: its rank, what it rests on, where it goes."""
        rank = int(np.flatnonzero(self.order == i)[0]) + 1
        return f"{self.explain(i)}, {ordinal(rank)} of {len(self.order)}, {self._where(i)}"

    def _where(self, i: int) -> str:
        sent = 0
        for batch in self.batches:
            if i in batch.indices:
                text = f"{batch.tier} batch of {len(batch.indices)} on {batch.engine}"
                return text if batch.tier == "edge" else f"{text} ({self._overflow(i)})"
            sent += len(batch.indices)
        waits = self.placement.explain_left(int(np.flatnonzero(self.left == i)[0]))
        return f"waits: {waits}"

    def _overflow(self, i: int) -> str:
        cloud = np.concatenate([b.indices for b in self.batches if b.tier == "cloud"])
        rank = np.empty(len(self.order), np.int64)
        rank[self.order] = np.arange(len(self.order))
        return self.placement.explain_cloud(int((rank[cloud] < rank[i]).sum()))


@runtime_checkable
class SchedulingPolicy(Protocol):
    """Orders pending requests and places them. Pure: same input, same decision."""

    @property
    def reading(self) -> WaitReading:
        """How the TaskTable that this policy reads must count waits."""
        ...

    def decide(
        self, now_ns: int, pending: Pending, tasks: TaskTable, capacity: Capacity
    ) -> Decision: ...


def dispatch(
    order: Ints,
    pending: Pending,
    tasks: TaskTable,
    capacity: Capacity,
    explain: Callable[[int], str],
    bucket: Ints | None = None,
) -> Decision:
    """Completes a policy's order to a decision: by ranks first, placed, and with who was skipped
    counted."""
    if any(pending.ranks):
        order = order[np.argsort(np.array(pending.ranks)[order], kind="stable")]
    if pending.policies:
        placement = place_policies(order, pending.policies, capacity, pending.bound)
    else:
        placement = place(order, capacity)
    skipped = tasks.skipped[pending.rows]
    if placement.batches:
        skipped = skipped + 1
        for batch in placement.batches:
            skipped[batch.indices] = 0
    return Decision(order, placement, skipped, explain, bucket)


def ordinal(n: int) -> str:
    """1 -> 1st, 12 -> 12th, 23 -> 23rd."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
