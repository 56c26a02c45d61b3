"""How much a peer may send: token buckets for messages and bytes. Time is an argument."""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

MAX_PEERS = 256
"""Peers whose budgets are remembered; who was silent longest is forgotten first."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What one peer may send over a network link, in the long run and at once.

    A batch is one message of up to a few MB, a heartbeat a few bytes five times a second: the
    defaults are far above what a serving node sends, and a 2 Gbit/s link.
    """

    messages_per_s: float = 500.0
    messages_at_once: float = 1000.0
    bytes_per_s: float = 250e6
    bytes_at_once: float = 512e6


class RateDecision(Enum):
    """What to do with a message, before it is decoded."""

    READ = "read"
    DROP = "drop"
    DROP_AND_TELL = "drop and tell"
    """The first one dropped: the peer is told once, and again only after it has slowed down."""


@dataclass(slots=True)
class _Budget:
    messages: float
    bytes: float
    at: float
    told: bool = False


class Budgets:
    """The budgets of all peers of a socket."""

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._of: OrderedDict[object, _Budget] = OrderedDict()
        self.dropped = 0
        """Messages that were not read."""

    def spend(self, peer: object, size: int, now: float) -> RateDecision:
        """Charges a message of `size` bytes to `peer` at `now`, in seconds of a monotonic clock."""
        limit = self._limit
        budget = self._of.get(peer)
        if budget is None:
            while len(self._of) >= MAX_PEERS:
                self._of.popitem(last=False)
            budget = self._of[peer] = _Budget(limit.messages_at_once, limit.bytes_at_once, now)
        self._of.move_to_end(peer)
        passed, budget.at = max(0.0, now - budget.at), now
        budget.messages = min(
            limit.messages_at_once, budget.messages + passed * limit.messages_per_s
        )
        budget.bytes = min(limit.bytes_at_once, budget.bytes + passed * limit.bytes_per_s)
        if budget.messages < 1 or budget.bytes < size:
            self.dropped += 1
            verdict = RateDecision.DROP if budget.told else RateDecision.DROP_AND_TELL
            budget.told = True
            return verdict
        budget.messages -= 1
        budget.bytes -= size
        if min(budget.messages / limit.messages_at_once, budget.bytes / limit.bytes_at_once) > 0.5:
            budget.told = False
        return RateDecision.READ
