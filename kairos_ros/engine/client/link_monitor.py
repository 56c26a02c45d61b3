"""Heartbeats and batches on their way to an engine, and what they tell of the link.

Pure: times are arguments, seconds of one clock.
"""

from dataclasses import dataclass

from kairos_ros.core.errors import WireError
from kairos_ros.transport.link_estimate import LinkEstimate, LinkState

PROBES = 4
PROBE_BYTES = 262_144
"""Carried once when a worker is found, so that the first placement knows the bandwidth. Several,
because TCP starts slowly: with fewer the median is that of a slow start."""
REMEASURE_S = 30.0
"""A link that carried no batch for so long carries another probe: placement would never again use
one that it once took for slow, and so never learn that it is not."""
LONGEST_UPLOAD_S = 5.0
"""Silence is borne for so long at most because of an upload, however slow the link was."""
BEHIND = -1
"""Stands for the padding of a heartbeat that a probe slowed down: it measures nothing."""
MAX_PINGS = 64
"""Heartbeats whose answers are waited for."""


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """When a link counts as lost. Seconds."""

    heartbeat_s: float = 0.2
    silence_s: float = 1.5
    """No sign of life for so long, besides four round trips and what an upload takes (see
    `patience_s`): down. What was under way is served elsewhere then, so this bounds what robots
    notice."""
    overdue_s: float = 2.0
    overdue_factor: float = 3.0
    """A batch without an answer overdue_s after overdue_factor times what it and those before it
    should take is given up as lost; an answer that comes yet is dropped."""


@dataclass(slots=True)
class _Sent:
    rows: int
    size: int
    at: float
    expected_s: float
    """What it should compute."""
    work_s: float
    """The same and its upload."""
    due: float
    alone: bool
    """Nothing else was being uploaded: how long it takes tells the bandwidth."""
    confirmed: bool = False


class LinkMonitor:
    """Of one link, for as long as it is tried; `forget` where the worker is lost."""

    def __init__(self, timing: LinkTiming, *, probes: bool = True) -> None:
        """`probes`: the bandwidth is worth measuring."""
        self._timing = timing
        self._probes_wanted = probes
        self._estimate = LinkEstimate()
        self._sent: dict[int, _Sent] = {}
        self._pings: dict[int, tuple[float, int]] = {}
        """Number -> (when, padding)."""
        self._probes = 0
        """Sent since the worker was found."""
        self._used = 0.0
        """When it last carried a batch, or was measured by a probe."""

    def state(self, replicas: int = 1) -> LinkState:
        return self._estimate.state(len(self._sent), self._unconfirmed, replicas)

    @property
    def patience_s(self) -> float:
        """Silence beyond this is the end of the link. Heartbeats wait behind what is uploaded."""
        link = self._estimate.state()
        upload_s = 2 * (self._unconfirmed + self._probe_bytes) / link.bytes_per_s
        return self._timing.silence_s + 4 * link.rtt_s + min(upload_s, LONGEST_UPLOAD_S)

    @property
    def _unconfirmed(self) -> int:
        """Bytes of batches that the worker has not said to have."""
        return sum(sent.size for sent in self._sent.values() if not sent.confirmed)

    # Heartbeats

    @property
    def probed(self) -> bool:
        """Whether the bandwidth was measured since the worker was found."""
        return not self._probes_wanted or (self._probes >= PROBES and not self._probing)

    def padding(self, now: float) -> int:
        """Bytes that the next heartbeat shall carry."""
        if not self._probes_wanted or not self._estimate.known or self._probing:
            return 0
        idle = not self._sent and now - self._used > REMEASURE_S
        return PROBE_BYTES if self._probes < PROBES or idle else 0

    def pinged(self, number: int, padding: int, now: float) -> None:
        """A heartbeat was sent."""
        if len(self._pings) >= MAX_PINGS:
            self._pings.pop(next(iter(self._pings)))
        self._pings[number] = (now, padding or (BEHIND if self._probing else 0))
        self._probes += padding > 0

    def pong(self, number: int | None, now: float) -> bool:
        """A heartbeat was answered; whether that tells the round trip."""
        at, padding = self._pings.pop(number or 0, (now, BEHIND))
        if padding > 0:
            self._used = now
            self._estimate.received(padding, now - at)
        elif padding == 0:
            self._estimate.round_trip(now, now - at)
        return padding == 0

    def found(self) -> None:
        """The worker answers for the first time. How long heartbeats before that took was not the
        link's fault: they waited for somebody to be there."""
        self._pings.clear()

    def segments(self, sent: int, resent: int) -> None:
        """As `LinkEstimate.segments`."""
        self._estimate.segments(sent, resent)

    @property
    def _probing(self) -> bool:
        """Whether a probe is on its way."""
        return self._probe_bytes > 0

    @property
    def _probe_bytes(self) -> int:
        """Of the probe that is on its way."""
        return sum(max(0, padding) for _, padding in self._pings.values())

    # Batches

    def sent(self, batch: int, rows: int, size: int, expected_s: float, now: float) -> None:
        """A batch of so many requests and bytes was sent; it should compute `expected_s`."""
        self._estimate.sent(rows, size)
        link, timing = self._estimate.state(), self._timing
        work_s = expected_s + link.upload_s(rows)
        ahead_s = sum(sent.work_s for sent in self._sent.values())
        ahead_s += self._probe_bytes / link.bytes_per_s
        self._used = now
        due = now + timing.overdue_s + timing.overdue_factor * (ahead_s + work_s)
        due += 2 * (link.rtt_s + 4 * link.jitter_s)
        alone = not self._probing and all(sent.confirmed for sent in self._sent.values())
        self._sent[batch] = _Sent(rows, size, now, expected_s, work_s, due, alone)

    def confirmed(self, batch: int, now: float) -> bool:
        """The worker has all of the batch; whether that is news."""
        sent = self._sent.get(batch)
        if sent is None or sent.confirmed:
            return False
        sent.confirmed = True
        if sent.alone:
            self._estimate.received(sent.size, now - sent.at)
        return True

    def expected_s(self, batch: int | None) -> float | None:
        """What a batch should compute; None where none of that number is waited for."""
        sent = self._sent.get(batch or 0)
        return sent.expected_s if sent else None

    def answered(self, batch: int, outcomes: int, now: float) -> float:
        """The batch is done; seconds since it was sent, 0 where it was given up before.

        Raises WireError for another number of outcomes than requests.
        """
        sent = self._sent.get(batch)
        if sent is None:
            return 0.0
        if outcomes != sent.rows:
            raise WireError(f"{outcomes} outcomes for {sent.rows} requests")
        del self._sent[batch]
        self._used = now
        return now - sent.at

    def refused(self, batch: int) -> bool:
        """The batch was not inferred; whether it was waited for."""
        return self._sent.pop(batch, None) is not None

    def give_up(self, now: float) -> list[tuple[int, float]]:
        """Batches whose answer should have been here long ago, and for how long they were gone."""
        late = [(batch, now - sent.at) for batch, sent in self._sent.items() if now > sent.due]
        for batch, _ in late:
            del self._sent[batch]
        return late

    def forget(self) -> tuple[int, ...]:
        """The worker is lost, and so are these batches. What the link is like stays known."""
        lost = tuple(self._sent)
        self._sent.clear()
        self._pings.clear()
        self._probes = 0
        return lost
