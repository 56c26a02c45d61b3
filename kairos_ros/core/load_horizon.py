"""Longer horizons where engines are short: how much of a chunk is executed at least, per task.

A robot that executes more of every chunk asks less often. Where engines are short that is worth the
success that it costs: the floors of the horizons are chosen for the most successful tasks per hour,
success(horizon) · tasks per hour(horizon, load). Success against horizon is what
`kairos calibrate` has measured. Beyond the papers.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.calibration import HorizonCalibration
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.rate_control import RELEASE, TARGET_UTILISATION, fair_level

SAME = 1e-9
"""Relative difference below which two choices are equally good."""

MOST_PASSES = 3
"""Over all kinds, to improve a choice."""


@dataclass(frozen=True, slots=True)
class HorizonCurve:
    """What a calibration measured of one kind of task."""

    horizons: tuple[int, ...]
    """Static horizons, ascending."""
    success: tuple[float, ...]
    """Share of episodes that succeeded with each, 0 to 1."""
    actions: float
    """Executed in an episode on average; above 0."""

    def success_at(self, horizon: float) -> float:
        """Linear between what was measured, and constant outside."""
        return float(np.interp(horizon, self.horizons, self.success))


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """Robots that work on tasks of one kind now."""

    robots: int
    horizon: float
    """Actions that the horizon policy allows on average; above 0."""
    skipped: float
    """Actions of a chunk that are over when it comes, on average."""
    period_s: float
    """Control period."""
    cost_s: float
    """Share of the engines that one round per second takes."""
    curve: HorizonCurve | None = None
    """None: the kind was not calibrated, and its horizons are left as they are."""

    def executed(self, horizon: float) -> float:
        """Actions per round. A robot asks when at most half of its chunk is left (`lead_actions`),
        so no more than half is skipped."""
        return max(horizon - min(self.skipped, horizon / 2), 1.0)


def horizon_curves(calibration: HorizonCalibration) -> dict[str, HorizonCurve]:
    """Curves by every name of a task.

    The actions of an episode are those of the calibration's reference, its shortest horizon: its
    rounds times what each executes. Raises ConfigError where the file does not hold its counts.
    """
    try:
        assert calibration.static is not None
        how, found = calibration.static.how, calibration.how
        executed = min(found["ladder"]) - found["lead"]
        return {
            name: HorizonCurve(
                tuple(int(h) for h in how["successes"][names[0]]),
                tuple(n / how["episodes"] for n in how["successes"][names[0]].values()),
                executed * found["found"][names[0]]["reference_rounds"],
            )
            for names in calibration.static.tasks
            for name in names
        }
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(
            "load_horizon needs success against static horizons, and this calibration does not hold"
            " its counts; run 'kairos calibrate' for the policy, or leave load_horizon off"
        ) from None


def successes_per_s(loads: Sequence[TaskLoad], horizons: Sequence[float], target: float) -> float:
    """Of all calibrated kinds together, where each executes these horizons and the engines are used
    to at most `target`, in max-min fair shares."""
    executed = np.array([o.executed(h) for o, h in zip(loads, horizons, strict=True)])
    fastest = np.array([1 / one.period_s for one in loads])
    costs = np.array([one.robots * one.cost_s for one in loads])
    level = fair_level(fastest / executed, costs, np.ones(len(loads)), target)
    actions_per_s = np.minimum(fastest, level * executed)
    value = [
        one.robots * one.curve.success_at(h) / one.curve.actions if one.curve else 0.0
        for one, h in zip(loads, horizons, strict=True)
    ]
    return float(actions_per_s @ np.array(value))


def choose_floors(loads: Sequence[TaskLoad], target: float) -> list[int]:
    """The floor of the horizon per kind, 0 where there shall be none, for the most successes per
    hour with the engines used to at most `target`.

    Horizons are raised step by step, each time where that costs the least success for the load that
    it takes off the engines (the steps of the concave hull of success over load), and the best of
    all states on the way is taken, or the best common horizon if that is better. From there, one
    kind at a time is changed as long as that gains. Of states that are equally good the first is
    taken, in which horizons are shortest.
    """
    own = [one.horizon for one in loads]
    best, best_value = [0] * len(loads), successes_per_s(loads, own, target)
    now = list(best)
    for kind, horizon in _steps(loads):
        now[kind] = horizon
        best, best_value = _better(loads, now, target, best, best_value)
    ladder = {h for one in loads if one.curve for h in one.curve.horizons}
    for horizon in sorted(ladder):
        common = [horizon if one.curve and horizon > one.horizon else 0 for one in loads]
        best, best_value = _better(loads, common, target, best, best_value)
    for _ in range(MOST_PASSES if any(best) else 0):
        before = best
        for kind, one in enumerate(loads):
            for horizon in one.curve.horizons if one.curve else ():
                if horizon > one.horizon:
                    other = [*best[:kind], horizon, *best[kind + 1 :]]
                    best, best_value = _better(loads, other, target, best, best_value)
        if best == before:
            break
    return best


def _better(
    loads: Sequence[TaskLoad], floors: list[int], target: float, best: list[int], value: float
) -> tuple[list[int], float]:
    horizons = [max(f, one.horizon) for f, one in zip(floors, loads, strict=True)]
    found = successes_per_s(loads, horizons, target)
    return (list(floors), found) if found > value * (1 + SAME) else (best, value)


def _steps(loads: Sequence[TaskLoad]) -> list[tuple[int, int]]:
    """(kind, longer horizon), the one that costs least success per load first."""
    steps: list[tuple[float, int, int]] = []
    for kind, one in enumerate(loads):
        if one.curve is None:
            continue
        at, last = one.horizon, 0.0
        while longer := [h for h in one.curve.horizons if h > at]:
            prices = [_price(one, one.curve, at, h) for h in longer]
            cheapest = min(prices)
            at = max(h for h, price in zip(longer, prices, strict=True) if price <= cheapest)
            last = max(last, cheapest)
            steps.append((last, kind, int(at)))
    return [(kind, horizon) for _, kind, horizon in sorted(steps)]


def _price(one: TaskLoad, curve: HorizonCurve, horizon: float, longer: float) -> float:
    """Successes that are lost per round that is saved."""
    lost = (curve.success_at(horizon) - curve.success_at(longer)) / curve.actions
    saved = one.cost_s * (1 / one.executed(horizon) - 1 / one.executed(longer))
    return lost / saved if saved > 0 else float("inf")


class LoadHorizon[K: Hashable]:
    """Floors by kind of task, reviewed again and again. Not thread safe.

    A floor rises as soon as the target is exceeded, and falls when it would be lower with less than
    `RELEASE` of the target, too: in between it stays, and does not follow every robot.
    """

    def __init__(self, target: float = TARGET_UTILISATION) -> None:
        self.target = target
        self.floors: dict[K, int] = {}

    def review(self, loads: Mapping[K, TaskLoad]) -> dict[K, int]:
        """Kind -> floor of its horizons in actions, 0 for none."""
        kinds = list(loads.values())
        least = choose_floors(kinds, self.target)
        most = choose_floors(kinds, self.target * RELEASE)
        self.floors = {
            kind: min(max(self.floors.get(kind, 0), min(a, b)), max(a, b))
            for kind, a, b in zip(loads, least, most, strict=True)
        }
        return self.floors
