"""How often each robot may ask where engines are short: max-min fair rates (Rosa §3.4).

Demands and rates are in rounds per second. What a round costs is a share of the engines: 1 / the
most rounds per second that they do of the robot's policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TARGET_UTILISATION = 0.9
"""Share of the engines' best throughput that robots may ask for. What is left absorbs that requests
come in bunches and batches are not always full."""
RELEASE = 0.9
"""Control that has begun ends when less than this share of the target is asked for, so that it does
not begin and end with every round."""
LONGEST_PERIOD_S = 10.0
"""No robot is told to wait longer between two requests."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Demand:
    """What one robot in a task asks for."""

    rate_hz: float
    """Rounds per second that it would ask for if nothing limited it; above 0."""
    cost_s: float
    """Share of the engines that one round per second takes; above 0."""
    weight: float = 1.0
    """Its share of what is there, against those of others; above 0."""


def fair_level(rates: Floats, costs: Floats, weights: Floats, target: float) -> Floats:
    """The level L with sum(cost · min(rate, weight · L)) = target; infinite where all rates fit.

    rates: [..., n], costs, weights: [n], all above 0. Returns [...]. Nobody below the level is
    limited, and nobody above it has more per weight than another (max-min fairness, by filling from
    below).
    """
    order = np.argsort(rates / weights, axis=-1, kind="stable")
    rate, cost, weight = np.take_along_axis(rates, order, -1), costs[order], weights[order]
    asked = rate * cost
    filled = np.cumsum(asked, -1) - asked
    rest = np.cumsum((cost * weight)[..., ::-1], -1)[..., ::-1]
    levels = (target - filled) / rest
    """[..., i]: the level if the i robots that ask for least have all they ask for."""
    first = np.argmax(levels <= rate / weight, axis=-1, keepdims=True)
    level = np.take_along_axis(levels, first, -1)[..., 0]
    fits: Floats = np.where(asked.sum(-1) <= target, np.inf, level)
    return fits


class RateControl:
    """Least periods between two requests of each robot, reviewed again and again.

    Below the target utilisation nobody is limited. Above it, robots that ask for more than the fair
    level are held to it. Not thread safe; the caller says how often it is reviewed.
    """

    def __init__(self, target: float = TARGET_UTILISATION) -> None:
        self.target = target
        self.active = False
        """Whether anybody is limited."""

    def review(self, demands: Mapping[str, Demand]) -> dict[str, float]:
        """Robot -> least period in seconds, 0 where it may ask as it likes.

        The rates that follow add up to at most the target, unless LONGEST_PERIOD_S stands against
        it. While less than the target is asked for but more than `RELEASE` of it, those who ask
        most often keep to what they ask for now.
        """
        if not demands:
            self.active = False
            return {}
        rates = np.array([one.rate_hz for one in demands.values()])
        costs = np.array([one.cost_s for one in demands.values()])
        weights = np.array([one.weight for one in demands.values()])
        level = float(fair_level(rates, costs, weights, self.target))
        load = float(rates @ costs)
        self.active = load > self.target * (RELEASE if self.active else 1.0)
        if not self.active:
            return dict.fromkeys(demands, 0.0)
        if level == float("inf"):
            level = float((rates / weights).max())
        limited = rates >= weights * level
        periods = np.where(limited, np.minimum(1.0 / (weights * level), LONGEST_PERIOD_S), 0.0)
        return dict(zip(demands, periods.tolist(), strict=True))
