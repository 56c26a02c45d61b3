"""How many replicas a pool should have, from how many compute. Pure: times are arguments, seconds.

Queues do not tell: serving nodes send a batch when it is due to be computed, and keep the others.
"""

from collections import deque
from dataclasses import dataclass

from kairos_ros.core.errors import ConfigError
from kairos_ros.transport.message_codec import MAX_REPLICAS

AVERAGE_S = 5.0
"""Time constant of the running average of replicas that compute."""
BUSY = 0.85
"""Share of the replicas above which one more is wanted."""
QUIET_S = 60.0
SPARE = 0.7
"""One fewer is wanted when, for QUIET_S, less than this share of the others would have computed."""


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """From `least` to `most`."""

    least: int
    most: int


def read_replica_count(text: str) -> ReplicaCount:
    """Reads `2` or `1..4`. Raises ConfigError."""
    least, dots, most = text.partition("..")
    numbers = (least, most if dots else least)
    if all(number.isdecimal() for number in numbers):
        count = ReplicaCount(*map(int, numbers))
        if 1 <= count.least <= count.most <= MAX_REPLICAS:
            return count
    raise ConfigError(f"replicas {text!r}: write N or LEAST..MOST, from 1 to {MAX_REPLICAS}")


class ReplicaDemand:
    """Takes in how many compute, again and again; knows how many there should be."""

    def __init__(self, count: ReplicaCount) -> None:
        self._count = count
        self._since: float | None = None
        self._before = 0.0
        self._average = 0.0
        self._averages: deque[tuple[float, float]] = deque()
        """(time, average) of the last QUIET_S."""

    def wanted(self, now: float, computing: int, ready: int) -> int:
        """At most one more or fewer than the `ready` replicas, `computing` of which compute."""
        if self._since is None:
            self._since = self._before = now
        share = min(1.0, (now - self._before) / AVERAGE_S)
        self._before = now
        self._average += share * (computing - self._average)
        while self._averages and self._averages[-1][1] <= self._average:
            self._averages.pop()  # only the highest of what follows matters
        self._averages.append((now, self._average))
        while now - self._averages[0][0] > QUIET_S:
            self._averages.popleft()
        wanted = ready
        if self._average > BUSY * ready:
            wanted += 1
        elif now - self._since > QUIET_S and self._averages[0][1] < SPARE * (ready - 1):
            wanted -= 1
        return min(max(wanted, self._count.least), self._count.most)
