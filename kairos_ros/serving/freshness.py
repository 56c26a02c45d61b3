"""Observations that would be too old when their batch is dispatched are asked for again."""

from collections.abc import Iterable

from kairos_ros.serving.engines import REFETCH_LEAD_NS
from kairos_ros.serving.exchange import Answer, Refetch, answer
from kairos_ros.serving.request_queue import RequestQueue
from kairos_ros.serving.requests import Entry


class Freshness:
    """What was asked for again, and for which batch."""

    def __init__(self, stale_after_ns: int, queue: RequestQueue) -> None:
        self._stale_after_ns = stale_after_ns
        self._queue = queue

    @property
    def wanted(self) -> bool:
        """Whether observations are fetched again at all."""
        return self._stale_after_ns > 0

    def is_stale(self, dispatch_ns: int, entry: Entry, next_batch: int) -> bool:
        """Too old to be dispatched then, and not asked for again already for the next batch.

        A batch that takes longer than expected makes what was fetched for the next one older than
        that; asking once more would leave the engine without work for a round trip.
        """
        if not self.wanted or entry.hold_until_ns or entry.refetched_for == next_batch:
            return False
        return dispatch_ns - entry.observed_ns > self._stale_after_ns

    def refetch(
        self, now_ns: int, dispatch_ns: int, entries: Iterable[Entry], next_batch: int
    ) -> list[Answer]:
        """Asks for those of `entries`, all pending, that would be stale when dispatched."""
        asked = [e for e in entries if self.is_stale(dispatch_ns, e, next_batch)]
        for entry in asked:
            entry.refetched_for = next_batch
            entry.session.refetched = entry.query.round, entry.query.attempt
            self._queue.hold(entry, now_ns + REFETCH_LEAD_NS)
        return [answer(entry.query, Refetch()) for entry in asked]
