"""What becomes of the requests in a batch that its engine will not answer."""

from collections import Counter

from kairos_ros.core.tasks import TaskTable
from kairos_ros.serving.engines.batches import Running
from kairos_ros.serving.request_queue import PendingRequest, RequestQueue
from kairos_ros.serving.sessions import Sessions

MAX_CRASHES = 2
"""A request that was in the batch of this many dying engines is refused."""


class LostBatches:
    """Not thread safe."""

    def __init__(
        self, tasks: TaskTable, sessions: Sessions, queue: RequestQueue, counters: Counter[str]
    ) -> None:
        self._tasks, self._sessions, self._queue = tasks, sessions, queue
        self._counters = counters

    def requeue(self, lost: Running, *, crashed: bool) -> list[PendingRequest]:
        """Queues the requests that still want an answer again, where they stood. Returns those that
        have killed too many engines, and are to be refused. crashed: the batch itself may be why
        it is lost."""
        deadly = []
        for entry in lost.entries:
            entry.crashes += crashed
            entry.copies -= 1
            if entry.answered or entry.copies:
                continue
            live = self._sessions.sessions.get(entry.request.id.robot)
            if live is not entry.session or not entry.is_current():
                continue
            if entry.key in self._queue.entries or entry.key not in self._tasks:
                continue  # it asked again, or its task ended while this was under way
            if entry.newer:
                entry.renew(*entry.newer)
                entry.newer = None
            if entry.crashes >= MAX_CRASHES:
                entry.session.refused += 1
                deadly.append(entry)
            else:
                self._counters["requeued"] += 1
                entry.hold_until_ns, entry.hedged_on = 0, ""
                self._queue.add(entry)
        return deadly
