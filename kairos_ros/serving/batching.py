"""Which requests are sent where, and when: decisions of the scheduler become batches in flight."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from kairos_ros.core.decision import Decision, Pending
from kairos_ros.core.placement import Capacity, Ints
from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.effects import Effect, Submit
from kairos_ros.serving.engines import EngineSlot
from kairos_ros.serving.freshness import Freshness
from kairos_ros.serving.hedging import Hedging
from kairos_ros.serving.options import ServingOptions
from kairos_ros.serving.request_queue import RequestQueue
from kairos_ros.serving.requests import Entry, infer_request
from kairos_ros.serving.roster import Roster

SOONEST_NS = 1_000_000
"""How soon at the earliest an engine behind a link is looked at again."""


class Batching:
    """To be asked after every event, and at `wakeup_ns`. Not thread safe."""

    def __init__(
        self,
        options: ServingOptions,
        tasks: TaskTable,
        roster: Roster,
        queue: RequestQueue,
        counters: Counter[str],
    ) -> None:
        self._options = options
        self._tasks = tasks
        self._roster = roster
        self._queue = queue
        self._counters = counters
        self._freshness = Freshness(options.stale_after_ns, queue)
        self._hedging = Hedging(options.hedge_budget, tasks)
        self._last: tuple[Decision, list[str]] | None = None
        self._next_batch = 1

    def form(self, now_ns: int) -> list[Effect]:
        """Forms batches for idle engines, and asks for fresh observations for the next ones."""
        effects: list[Effect] = []
        ready = self._roster.ready
        idle = self._queue.entries and any(slot.is_free(now_ns) for slot in ready)
        while idle:
            formed = self._form_batches(now_ns, ready)
            effects += formed
            # one of several servers behind a link may still be idle
            idle = self._queue.entries and any(
                self._roster.slots[sent.engine].is_free(now_ns)
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
                capacity = self._capacity(now_ns, ready, keys, freed=slot)
                effects += self._refetch_next(now_ns, dispatch_ns, keys, capacity)
        return effects

    def wakeup_ns(self, now_ns: int) -> int | None:
        """When there is something to do next, if nothing happens before."""
        hedge_ns = self._hedging.wakeup_ns(now_ns, self._roster.ready)
        times = [] if hedge_ns is None else [hedge_ns]
        if not self._queue.entries:
            return min(times, default=None)
        times.append(self._queue.next_alarm_ns(now_ns))
        for slot in self._roster.slots.values():
            if slot.newest is None:
                continue
            free_ns = slot.next_free_ns(now_ns)
            if not slot.newest.prefetched and self._freshness.wanted:
                times.append(slot.prefetch_ns(now_ns))
            if slot.link and free_ns > now_ns:
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
        return decision.reason(keys.index(key)) if decision and key in keys else ""

    def _form_batches(self, now_ns: int, ready: list[EngineSlot]) -> list[Effect]:
        """One decision about everything that waits."""
        effects: list[Effect] = []
        waiting = [k for k, entry in self._queue.entries.items() if now_ns >= entry.hold_until_ns]
        batch, stale = self._next_batch, self._freshness.is_stale
        fresh = [k for k in waiting if not stale(now_ns, self._queue.entries[k], batch)]
        if len(fresh) < len(waiting):
            capacity = self._capacity(now_ns, ready, waiting)
            effects += self._refetch_next(now_ns, now_ns, waiting, capacity)
        if fresh:
            effects += self._dispatch(now_ns, fresh, self._capacity(now_ns, ready, fresh))
        return effects

    def _capacity(
        self,
        now_ns: int,
        ready: Iterable[EngineSlot],
        keys: list[str],
        freed: EngineSlot | None = None,
    ) -> Capacity:
        """What the engines can take of `keys` now, or (of `freed`) when that can take a batch."""
        pending = [self._queue.entries[key] for key in keys]
        engines = (
            slot.capacity(now_ns, pending, free=True if slot is freed else None) for slot in ready
        )
        return Capacity(tuple(engines), self._options.comparison)

    def _refetch_next(
        self, now_ns: int, dispatch_ns: int, keys: list[str], capacity: Capacity
    ) -> list[Effect]:
        """Asks for newer observations where a batch of `keys` would be dispatched with stale ones.

        Those further back in the queue are left alone: they would be stale again when it is their
        turn, and taking an observation costs the robot.
        """
        batches = self._decide(now_ns, keys, capacity).batches
        chosen = [self._queue.entries[keys[i]] for batch in batches for i in batch.indices]
        asked = self._freshness.refetch(now_ns, dispatch_ns, chosen, self._next_batch)
        self._counters["refetched"] += len(asked)
        return [*asked]

    def _decide(self, now_ns: int, keys: list[str], capacity: Capacity) -> Decision:
        pending = Pending.of(
            self._tasks, {key: self._queue.entries[key].received_ns for key in keys}
        )
        return self._options.scheduling.decide(now_ns, pending, self._tasks, capacity)

    def _dispatch(self, now_ns: int, keys: list[str], capacity: Capacity) -> list[Effect]:
        decision = self._decide(now_ns, keys, capacity)
        self._last = (decision, keys)
        rows, skipped = self._tasks.rows_of(keys), decision.skipped_after.copy()
        batches = []
        for batch in decision.batches:
            chosen = self._harmless(batch.indices, keys)
            put_off = np.setdiff1d(batch.indices, chosen)
            skipped[put_off] = self._tasks.skipped[rows[put_off]] + 1
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
                entry.reason, entry.dispatched_ns = decision.reason(int(i)), now_ns
                entries.append(entry)
            self._hedging.budget.count(len(entries))
            effects.append(self._submit(now_ns, self._roster.slots[engine], entries))
        return effects

    def _harmless(self, indices: Ints, keys: list[str]) -> Ints:
        """What of a batch, most urgent first, is sent: a request that may have killed an engine
        travels alone, and at once, lest those who keep asking pass it over for ever."""
        suspects = [i for i in indices if self._queue.entries[keys[i]].crashes]
        return np.array(suspects[:1]) if suspects else indices

    def _submit(self, now_ns: int, slot: EngineSlot, entries: list[Entry]) -> Submit:
        batch, self._next_batch = self._next_batch, self._next_batch + 1
        moved = sum(entry.history_moves_to(slot.name) for entry in entries)
        slot.begin(batch, entries, now_ns)
        for entry in entries:
            entry.copies += 1
        requests = [infer_request(entry.query) for entry in entries]
        expected_s = slot.latency_of(len(entries)) / 1e9
        return Submit(slot.name, batch, requests, expected_s, moved * slot.history_bytes)
