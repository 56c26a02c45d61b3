"""How often a component keeps its latency objective, over the last while. Pure."""

from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Attained:
    """The window as of now; shares and latencies are NaN while it is empty."""

    answers: int
    """Requester in the window, the failed ones included."""
    within: float
    """Share of them that came in time, 0..1."""
    failed: int
    p50_s: float
    p95_s: float
    """Of those that came at all."""


class AttainmentWindow:
    """Counts answers of the last `window_ns`. A failure is never in time."""

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._answers: deque[tuple[int, float, bool]] = deque()

    def add(self, now_ns: int, latency_s: float | None, *, in_time: bool) -> None:
        """An answer came after `latency_s`, or failed (None)."""
        latency = float("nan") if latency_s is None else latency_s
        self._answers.append((now_ns, latency, in_time and latency_s is not None))

    def at(self, now_ns: int) -> Attained:
        while self._answers and self._answers[0][0] < now_ns - self._window_ns:
            self._answers.popleft()
        if not self._answers:
            return Attained(0, float("nan"), 0, float("nan"), float("nan"))
        latency = np.array([one[1] for one in self._answers])
        came = latency[~np.isnan(latency)]
        p50, p95 = np.percentile(came, (50, 95)) if len(came) else (np.nan, np.nan)
        within = sum(one[2] for one in self._answers) / len(self._answers)
        return Attained(len(latency), within, len(latency) - len(came), float(p50), float(p95))
