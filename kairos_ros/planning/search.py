"""The action rates that given servers can carry: of one class by bisection, of several by an
adaptive frontier (Rosa §3.4.2, §3.4.3).

A rate vector is feasible on s servers where its footprint is at most s. The footprint does not
depend on s, and all bisections halve the same intervals, so that a search with more servers never
ends with less where it goes the same way.
"""

from collections.abc import Callable, Sequence

from kairos_ros.planning.ilp import Level, relaxed
from kairos_ros.planning.sizing import Sizing
from kairos_ros.planning.workload import Objective

Rates = tuple[float, ...]
"""Actions per second of every robot, by class."""
HALVINGS = 12
"""Of one class's interval: rates are found to 1/4096 of the highest."""
TOLERANCE = 0.002
"""Gains below this share of the objective are not looked for."""
EVERY_SIZE = 16
"""Up to so many servers, all smaller numbers of servers are searched, too: the best of them is a
plan for more. So one more GPU never makes a plan worse."""
LEVELS = 200
"""Rates of a class between which the relaxed program chooses."""
LEAST = 1e-3
"""Of its ceiling: what a class without a floor gets at least, for its models to have servers."""


class Search:
    """Over the rates of one sizing; remembers what it found."""

    def __init__(self, sizing: Sizing, objective: Objective, evaluations: int) -> None:
        self.sizing = sizing
        self.ceilings = tuple(map(sizing.ceiling_hz, sizing.classes))
        self.floors = tuple(
            max(one.floor_per_robot_hz, LEAST * ceiling)
            for one, ceiling in zip(sizing.classes, self.ceilings, strict=True)
        )
        self._weights = tuple(one.value * one.count for one in sizing.classes)
        self._objective = objective
        self._left = evaluations
        self._found: dict[int, Rates | None] = {}
        self._levels: list[list[tuple[float, Level]]] = []
        self._relaxations: dict[int, tuple[Rates, float] | None] = {}

    def value(self, rates: Sequence[float]) -> float:
        """Eq. 1: Σ v_c K_c f_c."""
        return sum(w * hz for w, hz in zip(self._weights, rates, strict=True))

    def needed(self, rates: Sequence[float]) -> int | None:
        """Servers of System 1 and 2; None where no number is enough."""
        footprint = self.sizing.goal(rates)
        return None if footprint is None else footprint.total

    def best(self, servers: int) -> Rates | None:
        """The best rates on so many servers; None where they do not carry the floors."""
        if servers not in self._found:
            self._found[servers] = self._search(servers)
        return self._found[servers]

    def _search(self, servers: int) -> Rates | None:
        if not self._fits(self.floors, servers):
            return None
        if self._objective == "fewest":
            return self.floors
        if self._objective == "fair" or len(self.ceilings) == 1:
            return self._between(self.ceilings, servers)
        found = [self._frontier(self.floors, servers)]
        if (guess := self._relaxed(servers)) is not None:
            reached = self._between(guess[0], servers)
            found.append(self._frontier(reached, servers))
        if servers <= EVERY_SIZE and (smaller := self.best(servers - 1)) is not None:
            found.append(self._frontier(smaller, servers))
        return max(found, key=self.value)

    def bound(self, servers: int) -> float | None:
        """No rates on so many servers are worth more; None where the floors do not fit."""
        found = self._relaxed(servers)
        return None if found is None else found[1]

    def _relaxed(self, servers: int) -> tuple[Rates, float] | None:
        """Rates of the relaxed integer program, and its bound."""
        if servers not in self._relaxations:
            self._relaxations[servers] = self._relax(servers)
        return self._relaxations[servers]

    def _relax(self, servers: int) -> tuple[Rates, float] | None:
        if not self._levels:
            self._levels = [self._levels_of(c) for c in range(len(self.ceilings))]
        levels = [[level for _, level in mine] for mine in self._levels]
        if not all(levels) or (found := relaxed(levels, servers)) is None:
            return None
        mixtures, bound = found
        rates = (
            sum(share * hz for share, (hz, _) in zip(mixture, mine, strict=True))
            for mixture, mine in zip(mixtures, self._levels, strict=True)
        )
        return tuple(rates), bound

    def _levels_of(self, c: int) -> list[tuple[float, Level]]:
        floor, ceiling = self.floors[c], self.ceilings[c]
        steps = [floor + (ceiling - floor) * i / LEVELS for i in range(LEVELS + 1)]
        found = []
        for i, hz in enumerate(steps):
            if (shares := self.sizing.shares(c, hz)) is not None:
                most = steps[min(i + 1, LEVELS)]
                found.append((hz, Level(self._weights[c] * most, shares)))
        return found

    def _between(self, high: Rates, servers: int) -> Rates:
        """The same share of these rates for every class, as high as fits; no less than floors."""

        def at(share: float) -> Rates:
            ways = zip(self.floors, high, strict=True)
            return tuple(max(floor, share * top) for floor, top in ways)

        return at(_bisect(0.0, 1.0, lambda share: self._fits(at(share), servers)))

    def _frontier(self, start: Rates, servers: int) -> Rates:
        """Raises the class that has most to gain, by half of what is left to its upper bound. What
        does not fit is a new upper bound, because everything above it does not fit either."""
        rates, upper = list(start), list(self.ceilings)
        while True:
            gains = [
                w * (high - low) for w, high, low in zip(self._weights, upper, rates, strict=True)
            ]
            c = max(range(len(gains)), key=gains.__getitem__)
            if gains[c] <= TOLERANCE / len(rates) * self.value(rates) or self._left <= 0:
                return tuple(rates)
            self._left -= 1
            candidate = [*rates]
            candidate[c] = (rates[c] + upper[c]) / 2
            if self._fits(candidate, servers):
                rates = candidate
            else:
                upper[c] = candidate[c]

    def _fits(self, rates: Sequence[float], servers: int) -> bool:
        needed = self.needed(rates)
        return needed is not None and needed <= servers


def _bisect(low: float, high: float, fits: Callable[[float], bool]) -> float:
    """The highest that fits, from below; low fits."""
    if fits(high):
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
