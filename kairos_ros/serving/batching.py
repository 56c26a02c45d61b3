"""Which requests are sent where, and when: decisions of the scheduler become batches in flight."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.exchange import Answer, Refetch
from kairos_ros.core.placement.overflow import Capacity, Ints
from kairos_ros.core.scheduling.decision import Decision, Pending
from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.engines.engines import Engines
from kairos_ros.serving.engines.hedging import Hedging
from kairos_ros.serving.engines.slot import REFETCH_LEAD_NS, EngineSlot
from kairos_ros.serving.options import ServingOptions
from kairos_ros.serving.request_queue import PendingRequest, RequestQueue, infer_request
from kairos_ros.transport.messages import InferRequest

SOONEST_NS = 1_000_000
"""How soon at the earliest an engine behind a link is looked at again."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Hand these requests to the engine as one batch."""

    engine: str
    batch: int
    requests: list[InferRequest]
    expected_s: float
    history_bytes: int = 0
    """Of histories that must go with it, because other engines have them."""


Effect = Answer | Submit
"""What the dispatcher wants done: an answer sent to its robot, a batch handed to an engine."""


class Freshness:
    """What was asked for again, and for which batch."""

    def __init__(self, stale_after_ns: int, engines: Engines, queue: RequestQueue) -> None:
        self.stale_after_ns = stale_after_ns
        self._engines = engines
        self._queue = queue
        self._sent_by_engine: Counter[str] = Counter()
        """Engine -> batches that its device was given."""
        self._sent_by_policy: Counter[str] = Counter()
        """Policy -> batches that devices with an engine of it were given."""

    @property
    def wanted(self) -> bool:
        """Whether observations are fetched again at all."""
        return self.stale_after_ns > 0

    def sent(self, slot: EngineSlot) -> None:
        """An engine was given a batch."""
        mates = slot.mates or [slot]
        self._sent_by_engine.update(mate.name for mate in mates)
        self._sent_by_policy.update({mate.policy for mate in mates})

    def is_stale(self, dispatch_ns: int, entry: PendingRequest) -> bool:
        """Too old to be dispatched then, and not asked for again already for the next batch.

        A batch that takes longer than expected makes what was fetched for the next one older than
        that; asking once more would leave the engine without work for a round trip. A client whose
        execution is inferred has no newer one: it waits for its answer and does nothing meanwhile.
        """
        if not self.wanted or entry.hold_until_ns or entry.request.execution.inferred:
            return False
        if dispatch_ns - entry.observed_ns <= self.stale_after_ns:
            return False
        return entry.refetched_after != self._sent_before(entry)

    def refetch(self, now_ns: int, entries: Iterable[PendingRequest]) -> list[Answer]:
        """Asks for newer observations of `entries`, all pending, for the next batch."""
        answers = []
        for entry in entries:
            entry.refetched_after = self._sent_before(entry)
            entry.session.refetched = entry.request.id.round, entry.request.id.attempt
            self._queue.hold(entry, now_ns + REFETCH_LEAD_NS)
            answers.append(Answer(entry.request.id, Refetch()))
        return answers

    def _sent_before(self, entry: PendingRequest) -> int:
        """Batches so far where this request may be served."""
        bound = self._engines.bound(entry)
        return self._sent_by_engine[bound] if bound else self._sent_by_policy[entry.policy]


class Batching:
    """To be asked after every event, and at `wakeup_ns`. Not thread safe."""

    def __init__(
        self,
        options: ServingOptions,
        tasks: TaskTable,
        engines: Engines,
        queue: RequestQueue,
        counters: Counter[str],
    ) -> None:
        self._options = options
        self._tasks = tasks
        self._engines = engines
        self._queue = queue
        self._counters = counters
        self._freshness = Freshness(options.stale_after_ns, engines, queue)
        self._hedging = Hedging(options.hedge_budget, tasks)
        self._last: tuple[Decision, list[str]] | None = None
        self._next_batch = 1
        self._formed_ns = 0

    def change(self, options: ServingOptions) -> None:
        """As `Dispatcher.change`."""
        self._options = options
        self._freshness.stale_after_ns = options.stale_after_ns

    def form(self, now_ns: int) -> list[Effect]:
        """Forms batches for idle engines, and asks for fresh observations for the next ones."""
        effects: list[Effect] = []
        self._formed_ns = now_ns
        ready = self._engines.in_service
        idle = self._queue.entries and any(slot.is_free(now_ns) for slot in ready)
        while idle:
            formed = self._form_batches(now_ns, ready)
            effects += formed
            # one of several servers behind a link may still be idle
            idle = self._queue.entries and any(
                self._engines.slots[sent.engine].is_free(now_ns)
                for sent in formed
                if isinstance(sent, Submit)
            )
        if not self._queue.entries:
            for slot, copies in self._hedging.copies(now_ns, ready):
                self._counters["hedged"] += len(copies)
                effects.append(self._submit(now_ns, slot, copies))
        for slot in ready:
            newest = slot.newest
            if newest is None or newest.prefetched or not self._queue.entries:
                continue
            dispatch_ns = slot.next_free_ns(now_ns)
            if now_ns >= slot.prefetch_ns(now_ns):
                newest.prefetched = True
                if not self._freshness.wanted:
                    continue
                keys = list(self._queue.entries)
                capacity = self._capacity(now_ns, ready, keys, freed=slot.mates or [slot])
                effects += self._refetch(now_ns, self._stale(now_ns, dispatch_ns, keys, capacity))
        return effects

    def wakeup_ns(self, now_ns: int) -> int | None:
        """When there is something to do next, if nothing happens before."""
        hedge_ns = self._hedging.wakeup_ns(now_ns, self._engines.in_service)
        times = [] if hedge_ns is None else [hedge_ns]
        if not self._queue.entries:
            return min(times, default=None)
        times.append(self._queue.next_alarm_ns(now_ns))
        for slot in self._engines.slots.values():
            if slot.newest is None:
                continue
            free_ns = slot.next_free_ns(now_ns)
            if not slot.newest.prefetched and self._freshness.wanted:
                times.append(slot.prefetch_ns(now_ns))
            if (slot.link or slot.sent_early) and free_ns > now_ns:
                times.append(max(free_ns, now_ns + SOONEST_NS))
        return min(times)

    def why_waiting(self, key: str) -> str:
        """Why this pending request was not dispatched; empty: it is not pending, or not decided."""
        entry = self._queue.entries.get(key)
        if entry is None:
            return ""
        if entry.hold_until_ns:
            return "waits: a newer observation was asked for"
        if entry.crashes:
            return "waits: an engine died with it, so it travels alone"
        decision, keys = self._last or (None, [])
        if entry.not_before_ns > self._formed_ns:
            return "waits: it asks more often than the plan allows"
        if decision is None or key not in keys:
            return ""
        early = "asks more often than it may, " if entry.due_ns else ""
        return early + decision.reason(keys.index(key)) + _rests_on(entry)

    def _form_batches(self, now_ns: int, ready: list[EngineSlot]) -> list[Effect]:
        """One decision about everything that waits."""
        waiting = [k for k, entry in self._queue.entries.items() if entry.may_go(now_ns)]
        is_stale = self._freshness.is_stale
        fresh = [k for k in waiting if not is_stale(now_ns, self._queue.entries[k])]
        stale: list[PendingRequest] = []
        if len(fresh) < len(waiting):
            capacity = self._capacity(now_ns, ready, waiting)
            stale = self._stale(now_ns, now_ns, waiting, capacity)
        effects: list[Effect] = []
        if fresh:
            effects += self._dispatch(now_ns, fresh, self._capacity(now_ns, ready, fresh))
        return self._refetch(now_ns, stale) + effects  # for the batch after those of `effects`

    def _capacity(
        self,
        now_ns: int,
        ready: Iterable[EngineSlot],
        keys: list[str],
        freed: Sequence[EngineSlot] = (),
    ) -> Capacity:
        """What the engines can take of `keys` now, or (those `freed`) when they can take a
        batch."""
        pending = [self._queue.entries[key] for key in keys]
        engines = (
            slot.capacity(now_ns, pending, free=True if slot in freed else None) for slot in ready
        )
        return Capacity(tuple(engines), self._options.comparison)

    def _stale(
        self, now_ns: int, dispatch_ns: int, keys: list[str], capacity: Capacity
    ) -> list[PendingRequest]:
        """Those of a batch of `keys` that would be dispatched then with stale observations.

        Those further back in the queue are left alone: they would be stale again when it is their
        turn, and taking an observation costs the robot.
        """
        batches = self._decide(now_ns, keys, capacity).batches
        chosen = (self._queue.entries[keys[i]] for batch in batches for i in batch.indices)
        return [entry for entry in chosen if self._freshness.is_stale(dispatch_ns, entry)]

    def _refetch(self, now_ns: int, entries: list[PendingRequest]) -> list[Effect]:
        self._counters["refetched"] += len(entries)
        return [*self._freshness.refetch(now_ns, entries)]

    def _decide(self, now_ns: int, keys: list[str], capacity: Capacity) -> Decision:
        asked = [self._queue.entries[key] for key in keys]
        bound = tuple(self._engines.bound(entry) for entry in asked)
        several = len(self._options.policies) > 1 or any(bound)
        pending = Pending.of(
            self._tasks,
            {entry.key: entry.received_ns for entry in asked},
            tuple(entry.policy for entry in asked) if several else (),
            bound if several else (),
            tuple(int(entry.due_ns > now_ns) for entry in asked),
        )
        return self._options.scheduling.decide(now_ns, pending, self._tasks, capacity)

    def _dispatch(self, now_ns: int, keys: list[str], capacity: Capacity) -> list[Effect]:
        decision = self._decide(now_ns, keys, capacity)
        self._last = (decision, keys)
        rows, skipped = self._tasks.rows_of(keys), decision.skipped_after.copy()
        batches = []
        for batch in decision.batches:
            chosen = self._harmless(batch.indices, keys, self._engines.slots[batch.engine])
            if len(chosen) < len(batch.indices):
                put_off = np.setdiff1d(batch.indices, chosen)
                skipped[put_off] = self._tasks.skipped[rows[put_off]] + 1
            if len(chosen):
                batches.append((batch.engine, chosen))
        self._tasks.set_skipped(rows, skipped)
        if batches and len(keys) < len(self._queue.entries):
            # who waits for a newer observation is passed over like everybody else who waits
            decided = set(keys)
            others = self._tasks.rows_of(key for key in self._queue.entries if key not in decided)
            self._tasks.set_skipped(others, self._tasks.skipped[others] + 1)
        effects: list[Effect] = []
        for engine, chosen in batches:
            entries = []
            for i in chosen:
                entry = self._queue.entries.pop(keys[i])
                entry.reason = decision.reason(int(i)) + _rests_on(entry)
                entry.dispatched_ns = now_ns
                entry.session.computed_round = entry.request.id.task, entry.request.id.round
                entries.append(entry)
            self._hedging.budget.count(len(entries))
            effects.append(self._submit(now_ns, self._engines.slots[engine], entries))
        return effects

    def _harmless(self, indices: Ints, keys: list[str], slot: EngineSlot) -> Ints:
        """What of a batch, most urgent first, is sent to this engine: nothing that asks for another
        policy or is bound to another engine, whatever the scheduling policy placed there. A request
        that may have killed an engine travels alone, and at once, lest those who keep asking pass
        it over for ever."""
        entries = {i: self._queue.entries[keys[i]] for i in indices}
        fitting = [
            i
            for i, entry in entries.items()
            if entry.policy == slot.policy and self._engines.bound(entry) in ("", slot.name)
        ]
        suspects = [i for i in fitting if entries[i].crashes]
        return np.array(suspects[:1] or fitting, np.int64)

    def _submit(self, now_ns: int, slot: EngineSlot, entries: list[PendingRequest]) -> Submit:
        batch, self._next_batch = self._next_batch, self._next_batch + 1
        moved = sum(entry.history_moves_to(slot.name) for entry in entries)
        slot.begin(batch, entries, now_ns)
        self._freshness.sent(slot)
        if slot.standby:
            self._counters["served_by_standby"] += len(entries)
        for entry in entries:
            entry.copies += 1
        requests = [infer_request(entry.request) for entry in entries]
        expected_s = slot.latency_of(len(entries)) / 1e9
        return Submit(slot.name, batch, requests, expected_s, moved * slot.history_bytes)


def _rests_on(entry: PendingRequest) -> str:
    """What a decision about a robot that does not say what it executes rests on; else empty."""
    inferred = entry.request.execution.inferred
    return ", execution inferred from its request times" if inferred else ""
