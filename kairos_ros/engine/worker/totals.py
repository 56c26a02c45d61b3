"""What a worker has done since its start."""

import threading
from collections import Counter

from kairos_ros.core.errors import RefusalCode


class WorkTotals:
    """Counters by name of a policy in the registry. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._compute_s: dict[str, float] = {}
        self._refused: Counter[str] = Counter()

    def took(self, policy: str, requests: int, compute_s: float) -> None:
        """A batch that was computed."""
        with self._lock:
            self._batches[policy] += 1
            self._requests[policy] += requests
            self._compute_s[policy] = self._compute_s.get(policy, 0.0) + compute_s

    def refused(self, code: RefusalCode) -> None:
        """A batch that was not computed, or a message that was none."""
        with self._lock:
            self._refused[code.name.lower()] += 1

    @property
    def batches(self) -> dict[str, int]:
        with self._lock:
            return dict(self._batches)

    @property
    def requests(self) -> dict[str, int]:
        with self._lock:
            return dict(self._requests)

    @property
    def compute_s(self) -> dict[str, float]:
        """While batches were computed."""
        with self._lock:
            return dict(self._compute_s)

    @property
    def refusals(self) -> dict[str, int]:
        """By code."""
        with self._lock:
            return dict(self._refused)
