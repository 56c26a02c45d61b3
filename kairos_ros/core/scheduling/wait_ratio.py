"""How long a task has waited, by each reading of Algorithm 1 (Dai et al. §3.2.1). Exact integers.

Round j has a generation interval G_j and an execution interval E_j, both on the server's clock.
Every reading says when the next round was due (`due_ns`) and which start ends the wait:
W_j = start of that side in round j + 1 - due_ns.
"""

from dataclasses import dataclass
from typing import Literal

Interval = tuple[int, int]
"""(start_ns, end_ns)"""

Side = Literal["generation", "execution"]


@dataclass(frozen=True, slots=True)
class WaitReading:
    """Which reading of the printed algorithm counts the waits. The defaults are as printed."""

    wait: Literal["side", "unified"] = "side"
    """side: on the side that dominates the round: generation if |G_j| >= |E_j|, else execution.
    unified: E_{j+1}.start - max(E_j.end, G_j.end + L0), never below 0; needs no dominance test."""
    dominance: Literal["measured", "profile"] = "measured"
    """What is compared with |E_j| under side: the measured |G_j|, which batching inflates, or L0,
    the profiled latency of a batch of one."""
    clamp: bool = True
    """Count a negative wait (an early switch) as 0. As printed it would cancel other waits."""
    ongoing: bool = False
    """Count the wait of the pending round so far, too."""
    init: bool = False
    """Count the wait for the very first generation, too."""

    def due_ns(self, generation: Interval, execution: Interval, l0_ns: int) -> tuple[int, Side]:
        """When the round after this one was due, and on which side it was to start."""
        if self.wait == "unified":
            return max(execution[1], generation[1] + l0_ns), "execution"
        latency = generation[1] - generation[0] if self.dominance == "measured" else l0_ns
        if latency >= execution[1] - execution[0]:
            return generation[1], "generation"
        return execution[1], "execution"

    def gap_ns(self, due_ns: int, start_ns: int) -> int:
        """The wait that ends at `start_ns` for a round that was due at `due_ns`."""
        gap = start_ns - due_ns
        return max(gap, 0) if self.clamp or self.wait == "unified" else gap


def running_execution(
    received_ns: int, started_ago_ns: int, remaining: int, period_ns: int
) -> Interval:
    """E_j of the running round from a robot's report, on the server's clock (Dai et al. §3.2.1).

    The robot sends durations and counts only: how long ago the round's first action ran and how
    many actions remain. They are anchored at the time the request was received, so the clocks of
    two hosts are never compared; a later report of the same round replaces this estimate.
    """
    return received_ns - started_ago_ns, received_ns + remaining * period_ns


def first_execution_ns(chunk_size: int, control_rate_hz: float) -> int:
    """|E_last| of a task that has not executed anything yet: half the chunk at the control rate."""
    return round(chunk_size / 2 / control_rate_hz * 1e9)
