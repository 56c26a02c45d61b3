"""How long an answer takes, and so how early the next request must leave."""

from collections import deque

WINDOW = 20
"""Round trips remembered: a spike is forgotten after this many."""
QUANTILE = (9, 10)
"""Nearest-rank quantile of the window: one outlier in ten does not move the estimate."""


class LatencyEstimate:
    """Expected latency of the next round: measured network share plus what the server says it
    needs.

    The network share is a round trip on the robot's clock minus the server's share, a duration on
    the server's clock; no two clocks are compared. The server counts its queue, but no more than
    two full batches: in overload asking earlier would only age the observations.
    """

    def __init__(self, network_ns: int, engine_ns: int) -> None:
        """Starts from these values until something was measured."""
        self._initial_ns = network_ns
        self._engine_ns = engine_ns
        self._network_ns: deque[int] = deque(maxlen=WINDOW)

    def measured(self, round_trip_ns: int, server_ns: int, engine_ns: int) -> None:
        """Learns from one answer; an engine time of 0 is unknown and keeps the last one."""
        self._network_ns.append(max(0, round_trip_ns - server_ns))
        if engine_ns > 0:
            self._engine_ns = engine_ns

    @property
    def network_ns(self) -> int:
        if not self._network_ns:
            return self._initial_ns
        ranked = sorted(self._network_ns)
        return ranked[-(-len(ranked) * QUANTILE[0] // QUANTILE[1]) - 1]

    @property
    def expected_ns(self) -> int:
        return self.network_ns + self._engine_ns


def lead_actions(expected_ns: int, margin_ns: int, period_ns: int, horizon: int) -> int:
    """Actions that must still be in the buffer when the next request leaves.

    `ceil((expected + margin) / period)`, so that the answer is there when the buffer runs out, but
    at most half of `horizon` (actions of the newest chunk, counted from its observation): what is
    executed while the answer is under way is skipped in it, and a chunk must bring more new actions
    than it skips. Horizon 0 (nothing known) gives 0.
    """
    return min(-(-(expected_ns + margin_ns) // period_ns), horizon // 2)
