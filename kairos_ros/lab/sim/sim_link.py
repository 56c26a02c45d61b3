"""A simulated engine with the way to it: where a batch is when, in virtual nanoseconds."""

import heapq
from dataclasses import dataclass

from kairos_ros.lab.sim.sim_engine import SimEngine
from kairos_ros.transport.link_estimate import LinkState

UNLIMITED_BYTES_PER_S = 1e15
"""Of a link without a limit; a microsecond for a gigabyte."""


@dataclass(frozen=True, slots=True)
class Trip:
    """One batch's way. Nanoseconds."""

    confirmed_ns: int
    """When the serving node knows that the engine has all of it."""
    answered_ns: int
    """When the answer is back at the serving node."""


class SimLink:
    """Uploads go one after the other, then wait for a free replica; answers take half a round trip.

    Not pipelined, it is the dispatcher that sends one batch at a time; nothing ever waits here.
    """

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine
        self._uploaded_ns = 0
        self._replicas_free_ns = [0] * engine.replicas
        self._unconfirmed_bytes = 0

    def send(self, now_ns: int, size_bytes: int, compute_ns: int) -> Trip:
        """A batch of so many bytes leaves the serving node; the engine will compute it so long."""
        engine, rtt_ns = self._engine, self._engine.rtt_ns
        there_ns = rtt_ns - rtt_ns // 2
        self._uploaded_ns = max(now_ns, self._uploaded_ns) + engine.transfer_ns(size_bytes)
        arrived_ns = self._uploaded_ns + there_ns
        start_ns = max(arrived_ns, heapq.heappop(self._replicas_free_ns))
        heapq.heappush(self._replicas_free_ns, start_ns + compute_ns)
        self._unconfirmed_bytes += size_bytes
        return Trip(arrived_ns + rtt_ns // 2, start_ns + compute_ns + rtt_ns // 2)

    def confirm(self, size_bytes: int) -> None:
        """The serving node has learned that so many bytes have arrived."""
        self._unconfirmed_bytes -= size_bytes

    def state(self, request_bytes: int) -> LinkState:
        """As the serving node would have measured it."""
        rtt_s, mbps = self._engine.rtt_ns / 1e9, self._engine.bandwidth_mbps
        return LinkState(
            rtt_s=rtt_s,
            min_rtt_s=rtt_s,
            jitter_s=0.0,
            bytes_per_s=mbps * 1.25e5 if mbps else UNLIMITED_BYTES_PER_S,
            loss=0.0,
            request_bytes=float(request_bytes),
            unconfirmed_bytes=self._unconfirmed_bytes,
            replicas=self._engine.replicas,
        )
