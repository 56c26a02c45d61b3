"""Requests that wait for an engine, and when the next of them must be looked at."""

import heapq

from kairos_ros.serving.requests import Entry


class RequestQueue:
    """At most one request per task. Not thread safe."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        """Task key -> its pending request, in order of arrival. Take out by `pop` as you like; put
        in with `add`."""
        self._alarms: list[tuple[int, int, Entry]] = []
        """Heap of deadlines and ends of holds, some of them of requests that are no longer pending,
        each with a number that orders equal times."""
        self._reminders = 0

    def add(self, entry: Entry) -> None:
        """Queues a request of a task that has none here, at the end."""
        self.entries[entry.key] = entry
        self._remind(entry.deadline_ns, entry)

    def hold(self, entry: Entry, until_ns: int) -> None:
        """A pending request waits for a newer observation, at most until then."""
        entry.hold_until_ns = until_ns
        self._remind(until_ns, entry)

    def late(self, now_ns: int) -> list[Entry]:
        """Takes out the requests whose deadline has passed."""
        if not self.entries or self.next_alarm_ns(now_ns) > now_ns:
            return []
        late = [entry for entry in self.entries.values() if now_ns >= entry.deadline_ns]
        for entry in late:
            del self.entries[entry.key]
        return late

    def next_alarm_ns(self, now_ns: int) -> int:
        """The soonest deadline, or end of a hold that lies ahead. Only while requests are pending.

        Looked up in a heap: asked after every event, a walk over all pending requests would make
        the server's work grow with the square of an overload.
        """
        while True:
            at_ns, _, entry = self._alarms[0]
            holds = at_ns == entry.hold_until_ns and at_ns > now_ns
            if self._is_pending(entry) and (at_ns == entry.deadline_ns or holds):
                return at_ns
            heapq.heappop(self._alarms)

    def _is_pending(self, entry: Entry) -> bool:
        return self.entries.get(entry.key) is entry

    def _remind(self, at_ns: int, entry: Entry) -> None:
        self._reminders += 1
        heapq.heappush(self._alarms, (at_ns, self._reminders, entry))
        if len(self._alarms) > 100 + 4 * len(self.entries):  # mostly of entries that are gone
            self._alarms = [alarm for alarm in self._alarms if self._is_pending(alarm[2])]
            heapq.heapify(self._alarms)
