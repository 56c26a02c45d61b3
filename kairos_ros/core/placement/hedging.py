"""Hedging: a request that may be answered too late is sent to another tier, too; the first wins.

Estimates are integer nanoseconds from now.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.overflow import Tier

WINDOW = 200
"""Consecutive requests, in any of which the budget holds."""


@dataclass(frozen=True, slots=True)
class Route:
    """One way to an answer."""

    engine: str
    tier: Tier
    completion_ns: int
    """When the answer should be here."""
    late_ns: int = 0
    """How much later than that it may well be."""


def second_route(need_ns: int, chosen: Route, others: Iterable[Route]) -> Route | None:
    """Which route a copy of the request should take, if one is worth it.

    It is where the answer would be late for the robot, which runs out of actions in `need_ns`, if
    the chosen one took as long as it may, and would not be as late from another tier.
    """
    late_ns = chosen.completion_ns + chosen.late_ns
    if late_ns <= need_ns:
        return None
    sooner = (
        route for route in others if route.tier != chosen.tier and route.completion_ns < late_ns
    )
    return min(sooner, key=lambda route: route.completion_ns, default=None)


class HedgeBudget:
    """At most `share` copies per request, in any WINDOW consecutive requests."""

    def __init__(self, share: float) -> None:
        """Raises ConfigError for a share outside [0, 1]."""
        if not 0 <= share <= 1:
            raise ConfigError(f"hedge_budget is a share of the requests from 0 to 1, not {share}")
        self._most = int(share * WINDOW + 1e-9)
        self._requests = 0
        self._copies: deque[int] = deque()
        """Numbers of the requests at which copies were sent, those of the window."""

    @property
    def exists(self) -> bool:
        """Whether there can ever be a copy."""
        return self._most > 0

    def count(self, requests: int) -> None:
        """So many more were dispatched."""
        self._requests += requests

    def spend(self) -> bool:
        """Whether one more copy may be sent; it is then counted."""
        while self._copies and self._copies[0] <= self._requests - WINDOW:
            self._copies.popleft()
        if len(self._copies) >= self._most:
            return False
        self._copies.append(self._requests)
        return True
