"""What a link is like right now, from what travelled over it. Pure: times are arguments, seconds.

Everything is measured on this side's clock alone.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

RTT_WEIGHT = 0.125
JITTER_WEIGHT = 0.25
"""As in TCP's own estimator (RFC 6298)."""
WINDOW_S = 15.0
"""For how long a shortest round trip counts."""
TRANSFERS = 9
"""Newest transfers that the bandwidth is the median of: the first after a pause is slow, because
TCP feels its way up again, and the estimate shall not forget all others for it."""
MIN_TRANSFER_S = 1e-4
MIN_TRANSFER_BYTES = 16_384
"""Smaller messages fit into what TCP sends at once, and say nothing about bandwidth."""
UNKNOWN_BYTES_PER_S = 12.5e6
"""100 Mbit/s, until something was sent."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """A link as placement and operators see it."""

    rtt_s: float
    """Smoothed round trip of heartbeats."""
    min_rtt_s: float
    """Shortest lately: the link itself, without what queued in it."""
    jitter_s: float
    """Smoothed deviation of the round trip."""
    bytes_per_s: float
    """Towards the engine."""
    loss: float
    """Share of TCP segments that had to be sent again, 0..1."""
    request_bytes: float
    """Mean bytes on the wire of a request, images and all."""
    in_flight: int = 0
    """Batches sent and not answered."""
    unconfirmed_bytes: int = 0
    """Of batches that the engine has not confirmed to have received."""
    replicas: int = 1
    """Batches that the engine computes at once. 0: a pool that waits for all of its replicas."""

    def upload_s(self, requests: int) -> float:
        """From sending a batch until the engine has all of it."""
        return self.min_rtt_s / 2 + requests * self.request_bytes / self.bytes_per_s

    @property
    def delay_bytes(self) -> float:
        """Bandwidth-delay product: what fits into the link itself."""
        return self.bytes_per_s * self.min_rtt_s


class LinkEstimate:
    """Takes in measurements, gives a `LinkState`."""

    def __init__(self) -> None:
        self._rtt_s: float | None = None
        self._jitter_s = 0.0
        self._shortest: deque[tuple[float, float]] = deque()
        """(time, round trip), both ascending: candidates for the shortest."""
        self._rates: deque[float] = deque(maxlen=TRANSFERS)
        self._segments = self._resent = 0.0
        self._request_bytes: float | None = None

    @property
    def known(self) -> bool:
        """Whether a round trip was measured."""
        return self._rtt_s is not None

    def round_trip(self, now: float, seconds: float) -> None:
        """A heartbeat came back after `seconds`."""
        if self._rtt_s is None:
            self._rtt_s, self._jitter_s = seconds, seconds / 2
        else:
            off = abs(seconds - self._rtt_s)
            self._jitter_s += JITTER_WEIGHT * (off - self._jitter_s)
            self._rtt_s += RTT_WEIGHT * (seconds - self._rtt_s)
        while self._shortest and self._shortest[-1][1] >= seconds:
            self._shortest.pop()
        self._shortest.append((now, seconds))
        while now - self._shortest[0][0] > WINDOW_S:
            self._shortest.popleft()

    def received(self, size: int, seconds: float) -> bool:
        """A message of `size` bytes was confirmed `seconds` after it was sent, nothing else being
        on its way. Whether that tells the bandwidth."""
        if size < MIN_TRANSFER_BYTES:
            return False
        self._rates.append(size / max(MIN_TRANSFER_S, seconds - self._min_rtt_s))
        return True

    def sent(self, requests: int, size: int) -> None:
        """A batch of `requests` took `size` bytes."""
        mean = size / requests
        before = mean if self._request_bytes is None else self._request_bytes
        self._request_bytes = before + RTT_WEIGHT * (mean - before)

    def segments(self, sent: int, resent: int) -> None:
        """TCP sent so many segments since the last call, and so many of them again. Older counts
        fade, so that a loss of the past does not stay for ever."""
        self._segments = 0.98 * self._segments + sent
        self._resent = 0.98 * self._resent + resent

    def state(self, in_flight: int = 0, unconfirmed_bytes: int = 0, replicas: int = 1) -> LinkState:
        return LinkState(
            rtt_s=self._rtt_s or 0.0,
            min_rtt_s=self._min_rtt_s,
            jitter_s=self._jitter_s,
            bytes_per_s=median(self._rates) if self._rates else UNKNOWN_BYTES_PER_S,
            loss=min(1.0, self._resent / self._segments) if self._segments >= 1 else 0.0,
            request_bytes=self._request_bytes or 0.0,
            in_flight=in_flight,
            unconfirmed_bytes=unconfirmed_bytes,
            replicas=replicas,
        )

    @property
    def _min_rtt_s(self) -> float:
        return self._shortest[0][1] if self._shortest else 0.0
