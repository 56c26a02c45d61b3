"""One engine as the dispatcher sees it: what it computes now, how long that takes, what is free."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from kairos_ros.core.language.load import LanguageLoad
from kairos_ros.core.placement.overflow import EngineCapacity, Tier
from kairos_ros.core.profile import EngineProfile
from kairos_ros.serving.engines.batches import UNCAPPED, Running, SlotMemory
from kairos_ros.serving.request_queue import PendingRequest
from kairos_ros.transport.link_estimate import LinkState
from kairos_ros.transport.messages import EngineDescription

SlotState = Literal[
    "not loaded",
    "starting",
    "loading",
    "unreachable",
    "ready",
    "draining",
    "ending",
    "refused",
    "down",
]
"""not loaded: within a memory budget only. ending: there, or because no plan has it any more."""

REFETCH_LEAD_NS = 30_000_000
"""A little more than a round trip to a robot."""
LOAD_WINDOW_NS = 5_000_000_000
DRIFT_WEIGHT = 0.2
"""Weight of the newest batch in the running ratio of measured to profiled latency."""
DRIFT_FORGOTTEN_NS = 30_000_000_000
"""An engine behind a link that computed nothing for so long is taken to be as its profile says:
one that was slow for a while would never be used again, and so never found to be well."""
MAX_IN_FLIGHT = 16
"""Batches under way to one engine per server of it, whatever the estimates say."""
SLACK_NS = 5_000_000
"""How much earlier than needed a batch is sent over a link, besides twice its jitter: a GPU that
waits costs more than a batch that does. (Never more than a round trip earlier.)"""


PREPARING_NS = 1_000_000
"""Decoding that takes less is not worth forming a batch earlier."""
PREPARING_MARGIN = 1.25
"""For the way to the worker, and for decoding that takes longer than lately."""


@dataclass(slots=True)
class EngineSlot:
    """An engine and its batches.

    A local engine gets its next batch when the last one is answered, or so much earlier as
    decoding its pictures takes, which is done beside the last one. Behind a link (`link_changed`)
    the next batch is sent so that it arrives when the engine is done with those before: the engine
    never waits for the network, and the batch is formed as late as possible.

    An engine with k replicas is k servers with one queue: a batch starts when it is there and one
    of them is free, in the order in which batches were sent.
    """

    name: str
    tier: Tier
    network_ns: int = 0
    transfer_ns: int = 0
    """What one more request takes before it can be computed: its upload, or (without a link) the
    decoding of its pictures."""
    link: LinkState | None = None
    state: SlotState = "starting"
    description: EngineDescription | None = None
    latency_ns: tuple[int, ...] = ()
    """Profiled latency of batches of 1, 2, ... up to the largest worth forming."""
    profiled_ns: tuple[int, ...] = ()
    """The same whatever the plan says of the size of batches."""
    batch_cap: int = UNCAPPED
    """Largest batch by the plan that is applied."""
    drift: float = 1.0
    """Measured over profiled latency, lately."""
    surprise_ns: float = 0.0
    """By how much batches lately ended earlier or later than expected, on average."""
    drifted_ns: tuple[int, ...] = ()
    """`latency_ns` times `drift`."""
    flight: dict[int, Running] = field(default_factory=dict)
    """Batch number -> batch, in the order in which they were sent."""
    batches: int = 0
    requests: int = 0
    restarts: int = 0
    last_error: str = ""
    failures: int = 0
    """Workers in a row that ended without one finished batch."""
    failed: str = ""
    """Why the last of them ended."""
    retry_ns: int | None = None
    """When the next one starts; None: none does by itself."""
    busy_spans: list[tuple[int, int]] = field(default_factory=list)
    policy: str = ""
    """Name of the policy that it serves."""
    device: str = ""
    """What computes its batches, one at a time with those of its mates; empty: one of its own."""
    language: LanguageLoad | None = None
    """Questions that it answers besides; None: it answers none."""
    memory: SlotMemory | None = None
    """None: there is no budget for it."""
    standby: bool = False
    """It serves only in the place of an engine of its policy that is down."""
    mates: list["EngineSlot"] = field(default_factory=list, repr=False, compare=False)
    """The engines of its device, itself included; empty: it has one of its own."""

    def ready(self, description: EngineDescription, profile: EngineProfile, batch_cap: int) -> None:
        """Raises ConfigError for a profile of another policy."""
        profile.require_policy(description.policy_id)
        largest = min(profile.saturation_batch, description.max_batch, batch_cap)
        self.state, self.description, self.drift = "ready", description, 1.0
        self.last_error = ""
        self.profiled_ns = profile.latencies_ns(largest)
        self.limit(self.batch_cap)

    def limit(self, batch: int) -> None:
        """No batch is larger from now on."""
        self.batch_cap = batch
        self.latency_ns = self.profiled_ns[:batch]
        self.drifted_ns = tuple(round(ns * self.drift) for ns in self.latency_ns)

    def not_up(self, state: Literal["loading", "unreachable", "refused"], reason: str) -> None:
        """It cannot be used; if refused, until it is found again."""
        self.state, self.last_error = state, reason
        if state == "refused":
            self.description = None

    def died(self, reason: str, failures: int, retry_ns: int | None) -> None:
        """Its worker ended; arguments as the fields."""
        self.failed, self.failures, self.retry_ns = reason, failures, retry_ns

    @property
    def given_up(self) -> bool:
        """Its policy cannot be loaded on this host, and only a new start of the serving node tries
        it again."""
        failed = self.memory is not None and self.state == "down" and self.retry_ns is None
        return self.tier == "edge" and (failed or self.state == "refused")

    def trouble(self, now_ns: int) -> str:
        """For people, while worker after worker ends and none is up: since when, why, and when the
        next one starts."""
        if not self.failures or self.state == "ready":
            return ""
        ended = f"{self.failures} workers in a row ended without a batch, the last one: "
        if self.state == "loading":
            then = f"another is loading: {self.last_error}"
        elif self.retry_ns is None:
            then = "no other follows; restart the serving node"
        else:
            left_s = max(0.0, (self.retry_ns - now_ns) / 1e9)
            then = f"another starts in {left_s:.0f} s; its output is in the serving node's log"
        return f"{ended}{self.failed}; {then}"

    @property
    def running(self) -> Running | None:
        """The batch that is to be answered next."""
        return next(iter(self.flight.values()), None)

    @property
    def newest(self) -> Running | None:
        """The batch that was sent last."""
        return next(reversed(self.flight.values()), None)

    def link_changed(self, now_ns: int, link: LinkState, request_bytes: float) -> None:
        """`request_bytes` stands in for what the link has not measured yet."""
        self.link = link
        last_ns = self.busy_spans[-1][1] if self.busy_spans else now_ns
        if not self.flight and now_ns - last_ns > DRIFT_FORGOTTEN_NS:
            self.drift, self.drifted_ns = 1.0, self.latency_ns
        self.network_ns = round(link.rtt_s * 1e9)
        self.transfer_ns = round((link.request_bytes or request_bytes) / link.bytes_per_s * 1e9)

    @property
    def servers(self) -> int:
        """Batches that it computes at once."""
        return 1 if self.link is None else self.link.replicas

    def is_free(self, now_ns: int) -> bool:
        """Whether it should be given a batch now."""
        link, under_way = self.link, self._under_way
        if not under_way:
            return self.servers > 0
        if link is None:
            return self.sent_early and now_ns >= self.next_free_ns(now_ns)
        if len(under_way) >= MAX_IN_FLIGHT * link.replicas:
            return False
        newest_bytes = len(under_way[-1].entries) * link.request_bytes
        window = link.delay_bytes + newest_bytes
        return link.unconfirmed_bytes <= window and now_ns >= self.next_free_ns(now_ns)

    def next_free_ns(self, now_ns: int) -> int:
        """When it should be given its next batch, as far as is known."""
        under_way = self._under_way
        if not under_way:
            return now_ns
        newest = under_way[-1]
        if self.link is None:
            return newest.expected_end_ns - self._preparing_ns
        rows = len(newest.entries)
        jitter_s = min(2 * self.link.jitter_s, self.link.min_rtt_s)
        lead_ns = self._upload_ns(rows) + SLACK_NS + round(1e9 * jitter_s)
        uploaded_ns = newest.submitted_ns + rows * self.transfer_ns + newest.history_ns
        return max(uploaded_ns, self._server_free_ns(now_ns) - lead_ns)

    @property
    def sent_early(self) -> bool:
        """Whether a local engine gets its next batch before the running one is answered. Not where
        a device has several: the next one may be another's turn."""
        return len(self.flight) == 1 and len(self.mates) < 2 and self._preparing_ns > 0

    def prefetch_ns(self, now_ns: int) -> int:
        """When the observations of its next batch shall be asked for: a round trip to a robot
        before it is free, and as much earlier as batches lately came unexpectedly. Without the way
        there and back, those for a far engine would be stale by then."""
        return self.next_free_ns(now_ns) - REFETCH_LEAD_NS - round(self.surprise_ns)

    def latency_of(self, batch: int) -> int:
        """Expected nanoseconds for a batch of this size, as measured lately."""
        return self.drifted_ns[min(batch, len(self.drifted_ns)) - 1]

    @property
    def rounds_per_s(self) -> float:
        """The most that it does, with the best of its batch sizes, as measured lately."""
        best = max((1e9 * n / ns for n, ns in enumerate(self.drifted_ns, 1)), default=0.0)
        return best * self.servers

    @property
    def keeps_states(self) -> bool:
        """Its policy has a state of every task, which stays where it is."""
        return self.description is not None and self.description.keyframe_stride > 0

    @property
    def history_bytes(self) -> int:
        """That must be sent with a request whose task's history is elsewhere. None to an engine of
        this host: the serving node, through which all observations pass, is where it is."""
        return self.description.history_bytes if self.description and self.link else 0

    def histories_ns(self, entries: Iterable[PendingRequest]) -> tuple[int, ...]:
        """What the history of each of these adds to its upload; empty for a stateless policy."""
        if not self.history_bytes or self.link is None:
            return ()
        move_ns = round(1e9 * self.history_bytes / self.link.bytes_per_s)
        return tuple(move_ns * entry.history_moves_to(self.name) for entry in entries)

    def capacity(
        self, now_ns: int, pending: Iterable[PendingRequest] = (), *, free: bool | None = None
    ) -> EngineCapacity:
        """For the scheduler, which is to place `pending`. `free` overrides whether it can take a
        batch now: what it looks like when it can."""
        idle = self.is_free(now_ns) if free is None else free
        left = 0
        if self.link or not free:
            left = self._server_free_ns(now_ns) - now_ns
        return EngineCapacity(
            engine=self.name,
            tier=self.tier,
            free=len(self.latency_ns) if idle else 0,
            latency_ns=self.drifted_ns,
            residual_ns=max(0, left),
            network_ns=self.network_ns,
            transfer_ns=self.transfer_ns,
            history_ns=self.histories_ns(pending),
            policy=self.policy,
            device=self.device,
        )

    def used_ns(self, now_ns: int) -> int:
        """When a request was last under way; 0: never."""
        return now_ns if self.flight else max((end for _, end in self.busy_spans), default=0)

    def begin(self, batch: int, entries: list[PendingRequest], now_ns: int) -> None:
        running = Running(batch, entries, now_ns, sum(self.histories_ns(entries)), 0, 0, 0)
        running.start_ns = max(self._arrives_ns(running), self._server_free_ns(now_ns))
        self._expect(running)
        self.flight[batch] = running

    def end(
        self, now_ns: int, batch: int, compute_s: float | None, prepare_s: float = 0.0
    ) -> Running:
        """A batch in flight is over; `compute_s` is None when it failed."""
        done = self.flight.pop(batch)
        self._expect_those_behind(done, now_ns - self._download_ns)
        if compute_s is not None:
            self.batches += 1
            self.failures = 0
            self.requests += len(done.entries)
            ratio = compute_s * 1e9 / self.profiled_ns[len(done.entries) - 1]
            self.drift += DRIFT_WEIGHT * (min(max(ratio, 0.2), 5.0) - self.drift)
            self.drifted_ns = tuple(round(ns * self.drift) for ns in self.latency_ns)
            error_ns = abs(now_ns - done.expected_end_ns)
            self.surprise_ns += DRIFT_WEIGHT * (error_ns - self.surprise_ns)
            if self.link is None:
                measured_ns = round(1e9 * prepare_s / len(done.entries))
                self.transfer_ns += round(DRIFT_WEIGHT * (measured_ns - self.transfer_ns))
            left_ns = now_ns - self._download_ns
            began_ns = left_ns - round(compute_s * 1e9)
            self.busy_spans.append((began_ns, left_ns))
            oldest = now_ns - LOAD_WINDOW_NS
            while self.busy_spans and self.busy_spans[0][1] < oldest:
                self.busy_spans.pop(0)
        return done

    def load(self, now_ns: int) -> float:
        """Share of the last seconds spent computing, 0..1."""
        since = now_ns - LOAD_WINDOW_NS
        spans = list(self.busy_spans)
        computing = islice(self.flight.values(), self.servers)
        spans += [(one.start_ns, now_ns) for one in computing if one.start_ns < now_ns]
        busy = sum(end - max(start, since) for start, end in spans if end > since)
        return min(1.0, busy / (LOAD_WINDOW_NS * max(1, self.servers)))

    @property
    def _under_way(self) -> list[Running]:
        """Batches that its device has been given, in the order in which they were sent."""
        if len(self.mates) < 2:
            return list(self.flight.values())
        found = [running for mate in self.mates for running in mate.flight.values()]
        return sorted(found, key=lambda running: running.batch)

    def _server_free_ns(self, now_ns: int) -> int:
        """When one of its servers is free for a further batch; 0: one is idle. A batch whose answer
        is overdue is taken to end now."""
        soonest_ns = now_ns - self._download_ns
        free = [0] * max(1, self.servers)
        for running in self._under_way:
            start = max(running.start_ns, heapq.heappop(free))
            end = start + running.compute_end_ns - running.start_ns
            heapq.heappush(free, max(end, soonest_ns))
        return free[0]

    def _expect_those_behind(self, done: Running, free_ns: int) -> None:
        """Batches that wait for a server get the one that `done` left at `free_ns`, and the next
        ones as they are free."""
        others = self._under_way
        computing = max(1, self.servers) - 1
        free = [free_ns, *(max(one.compute_end_ns, free_ns) for one in others[:computing])]
        heapq.heapify(free)
        for other in others[computing:]:
            if other.submitted_ns >= done.submitted_ns:
                owner = next(m for m in self.mates or [self] if other.batch in m.flight)
                other.start_ns = max(owner._arrives_ns(other), heapq.heappop(free))
                owner._expect(other)
                heapq.heappush(free, other.compute_end_ns)

    @property
    def _preparing_ns(self) -> int:
        """How much earlier than a local engine is free its next batch is to be sent, so that it is
        decoded by then; 0: it is not worth it."""
        newest = self.newest
        ns = self.transfer_ns * len(newest.entries) if newest else 0
        return round(PREPARING_MARGIN * ns) + SLACK_NS if ns >= PREPARING_NS else 0

    @property
    def _download_ns(self) -> int:
        return self.network_ns // 2

    def _upload_ns(self, requests: int) -> int:
        return self.network_ns - self.network_ns // 2 + requests * self.transfer_ns

    def _arrives_ns(self, running: Running) -> int:
        upload_ns = self._upload_ns(len(running.entries)) + running.history_ns
        return running.submitted_ns + upload_ns

    def _expect(self, running: Running) -> None:
        running.compute_end_ns = running.start_ns + self.latency_of(len(running.entries))
        running.expected_end_ns = running.compute_end_ns + self._download_ns
