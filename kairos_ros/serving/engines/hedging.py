"""Copies of requests for engines that have nothing else to do, within a budget."""

from collections.abc import Iterator

from kairos_ros.core.placement.hedging import HedgeBudget, Route, second_route
from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.engines.batches import Running
from kairos_ros.serving.engines.slot import EngineSlot
from kairos_ros.serving.request_queue import PendingRequest

LATE = 2.0
"""An answer may well come this many times later than expected answers lately came off their time,
on average: one in twenty does."""
HEDGED = "hedged on"
"""In the reason of a request that has a copy."""


class Hedging:
    """Looks at what is in flight. To be asked only while no request waits."""

    def __init__(self, share: float, tasks: TaskTable) -> None:
        self.budget = HedgeBudget(share)
        self._tasks = tasks

    def copies(
        self, now_ns: int, ready: list[EngineSlot]
    ) -> Iterator[tuple[EngineSlot, list[PendingRequest]]]:
        """Batches of copies. Each must be begun before the next one is asked for."""
        if not self.budget.exists:
            return
        for slot in ready:
            if slot.is_free(now_ns):
                batch = self._batch(now_ns, slot, ready)
                if batch:
                    yield slot, batch

    def wakeup_ns(self, now_ns: int, ready: list[EngineSlot]) -> int | None:
        """When the next batch in flight will be so late that another engine is worth a copy."""
        if not self.budget.exists:
            return None
        late = (
            running.expected_end_ns + other.capacity(now_ns).completion_ns(1) + 1
            for slot in ready
            for other in ready
            if _second(other, slot) and not other.flight
            for running in slot.flight.values()
        )
        return min((at_ns for at_ns in late if at_ns > now_ns), default=None)

    def _batch(
        self, now_ns: int, slot: EngineSlot, ready: list[EngineSlot]
    ) -> list[PendingRequest]:
        capacity = slot.capacity(now_ns)
        batch: list[PendingRequest] = []
        history_ns = 0
        for entry, chosen, need_ns in self._candidates(now_ns, slot, ready):
            if len(batch) == capacity.free:
                break
            moved_ns = sum(slot.histories_ns([entry]))
            there_ns = capacity.completion_ns(len(batch) + 1, history_ns + moved_ns)
            route = second_route(need_ns, chosen, [Route(slot.name, slot.tier, there_ns)])
            if route is None:
                continue
            if not self.budget.spend():
                break
            history_ns += moved_ns
            entry.hedged_on = slot.name
            entry.reason += (
                f"; {HEDGED} {slot.name} ({there_ns / 1e9:.2f} s there, {_seconds(chosen)} on "
                f"{chosen.engine}, {_need(need_ns)})"
            )
            batch.append(entry)
        return batch

    def _candidates(
        self, now_ns: int, slot: EngineSlot, ready: list[EngineSlot]
    ) -> list[tuple[PendingRequest, Route, int]]:
        """Requests in flight to other tiers without a copy, those whose robots run out of actions
        first in front."""
        found = [
            (entry, _route(now_ns, other, running), need_ns)
            for other in ready
            if _second(slot, other)
            for running in other.flight.values()
            for entry in running.entries
            if not (entry.hedged_on or entry.crashes) and entry.is_current()
            if (need_ns := self._need_ns(now_ns, entry)) is not None
        ]
        return sorted(found, key=lambda candidate: candidate[2])

    def _need_ns(self, now_ns: int, entry: PendingRequest) -> int | None:
        if entry.key not in self._tasks:
            return None
        return int(self._tasks.run_out_ns[self._tasks.row(entry.key)]) - now_ns


def _second(engine: EngineSlot, other: EngineSlot) -> bool:
    """Whether what is in flight to `other` may be copied to this engine."""
    return engine.tier != other.tier and engine.policy == other.policy and not engine.keeps_states


def _route(now_ns: int, slot: EngineSlot, running: Running) -> Route:
    """What is left of a batch's route. One that is overdue may well take as long again."""
    left_ns = running.expected_end_ns - now_ns
    late_ns = max(round(LATE * slot.surprise_ns), -left_ns)
    return Route(slot.name, slot.tier, max(0, left_ns), late_ns)


def _seconds(route: Route) -> str:
    return f"{route.completion_ns / 1e9:.2f} to {(route.completion_ns + route.late_ns) / 1e9:.2f} s"


def _need(need_ns: int) -> str:
    return f"needed in {need_ns / 1e9:.2f} s" if need_ns > 0 else "needed at once"
