"""One engine as the dispatcher sees it: what it computes now, how long that takes, what is free."""

from dataclasses import dataclass, field
from typing import Literal

from kairos_ros.core.placement import EngineCapacity, Tier
from kairos_ros.core.profile import EngineProfile
from kairos_ros.serving.requests import Entry
from kairos_ros.transport.messages import EngineDescription

REFETCH_LEAD_NS = 30_000_000
"""A little more than a round trip to a robot."""
LOAD_WINDOW_NS = 5_000_000_000
DRIFT_WEIGHT = 0.2
"""Weight of the newest batch in the running ratio of measured to profiled latency."""


@dataclass(slots=True)
class Running:
    """A batch in an engine."""

    batch: int
    entries: list[Entry]
    submitted_ns: int
    expected_end_ns: int
    prefetch_ns: int
    """When the observations of the next batch shall be fresh: a round trip to a robot before the
    end, and as much earlier as batches lately came unexpectedly."""
    prefetched: bool = False
    """The next batch was looked at, and stale observations in it were asked for."""


@dataclass(slots=True)
class EngineSlot:
    """An engine and its running batch."""

    name: str
    tier: Tier
    network_ns: int = 0
    state: Literal["starting", "loading", "ready", "down"] = "starting"
    description: EngineDescription | None = None
    latency_ns: tuple[int, ...] = ()
    """Profiled latency of batches of 1, 2, ... up to the largest worth forming."""
    drift: float = 1.0
    """Measured over profiled latency, lately."""
    surprise_ns: float = 0.0
    """By how much batches lately ended earlier or later than expected, on average."""
    drifted_ns: tuple[int, ...] = ()
    """`latency_ns` times `drift`."""
    running: Running | None = None
    batches: int = 0
    requests: int = 0
    restarts: int = 0
    last_error: str = ""
    busy_spans: list[tuple[int, int]] = field(default_factory=list)

    def ready(self, description: EngineDescription, profile: EngineProfile, batch_cap: int) -> None:
        """Raises ConfigError for a profile of another policy."""
        profile.require_policy(description.policy_id)
        largest = min(profile.saturation_batch, description.max_batch, batch_cap)
        self.state, self.description, self.drift = "ready", description, 1.0
        self.latency_ns = self.drifted_ns = profile.latencies_ns(largest)

    def latency_of(self, batch: int) -> int:
        """Expected nanoseconds for a batch of this size, as measured lately."""
        return self.drifted_ns[min(batch, len(self.drifted_ns)) - 1]

    def capacity(self, now_ns: int, *, free: bool | None = None) -> EngineCapacity:
        """For the scheduler. `free` overrides whether it can take a batch now."""
        idle = self.running is None if free is None else free
        left = self.running.expected_end_ns - now_ns if self.running and not free else 0
        return EngineCapacity(
            engine=self.name,
            tier=self.tier,
            free=len(self.latency_ns) if idle else 0,
            latency_ns=self.drifted_ns,
            residual_ns=max(0, left),
            network_ns=self.network_ns,
        )

    def begin(self, batch: int, entries: list[Entry], now_ns: int) -> None:
        # it is held until the answer is here: without the way there and back, what is fetched again
        # for the next batch of a far engine would be stale by then
        expected = now_ns + self.latency_of(len(entries)) + self.network_ns
        prefetch = expected - REFETCH_LEAD_NS - round(self.surprise_ns)
        self.running = Running(batch, entries, now_ns, expected, prefetch)

    def end(self, now_ns: int, compute_s: float | None) -> Running:
        """The running batch is over; `compute_s` is None when it failed."""
        done = self.running
        if done is None:
            raise RuntimeError(f"engine {self.name} runs nothing")
        self.running = None
        if compute_s is not None:
            self.batches += 1
            self.requests += len(done.entries)
            ratio = compute_s * 1e9 / self.latency_ns[len(done.entries) - 1]
            self.drift += DRIFT_WEIGHT * (min(max(ratio, 0.2), 5.0) - self.drift)
            self.drifted_ns = tuple(round(ns * self.drift) for ns in self.latency_ns)
            error_ns = abs(now_ns - done.expected_end_ns)
            self.surprise_ns += DRIFT_WEIGHT * (error_ns - self.surprise_ns)
            self.busy_spans.append((done.submitted_ns, now_ns))
            oldest = now_ns - LOAD_WINDOW_NS
            while self.busy_spans and self.busy_spans[0][1] < oldest:
                self.busy_spans.pop(0)
        return done

    def load(self, now_ns: int) -> float:
        """Share of the last seconds spent computing, 0..1."""
        since = now_ns - LOAD_WINDOW_NS
        spans = list(self.busy_spans)
        if self.running:
            spans.append((self.running.submitted_ns, now_ns))
        busy = sum(end - max(start, since) for start, end in spans if end > since)
        return min(1.0, busy / LOAD_WINDOW_NS)
