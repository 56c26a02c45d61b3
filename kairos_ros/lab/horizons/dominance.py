"""Is a dynamic horizon better than a static one? Statistics over paired episodes, pure.

Every rule ran the same episodes (task, seed). Intervals are from resampling episodes within each
task, the same ones for every rule, so that what is common to them cancels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.horizons.policies import TUNED

RESAMPLES = 2000
WITHIN = 0.01
"""Success given up for a longer horizon that still counts as equal: one point."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Episodes of one rule, [tasks, episodes] each."""

    success: NDArray[np.bool_]
    rounds: NDArray[np.int64]
    actions: NDArray[np.int64]

    @property
    def rate(self) -> float:
        return float(self.success.mean())

    @property
    def horizon(self) -> float:
        """Mean executed horizon: actions per round, pooled."""
        return float(self.actions.sum() / self.rounds.sum())

    @property
    def rounds_per_episode(self) -> float:
        return float(self.rounds.mean())


@dataclass(frozen=True, slots=True)
class Measured:
    """All rules under one condition, on the same episodes."""

    condition: str
    tasks: tuple[str, ...]
    static: Mapping[str, Outcomes]
    dynamic: Mapping[str, Outcomes]
    tuned: Outcomes | None = None
    """Of `static:tuned`, the baseline, and its horizons by task."""
    tuned_horizons: Mapping[str, int] = field(default_factory=dict)

    @property
    def rules(self) -> dict[str, Outcomes]:
        return {**self.static, **({TUNED: self.tuned} if self.tuned else {}), **self.dynamic}


@dataclass(frozen=True, slots=True)
class RuleComparison:
    """One dynamic rule against the static horizons."""

    rule: str
    reference: str
    """The longest static horizon within WITHIN of the most successful one."""
    ratio: float
    """Mean executed horizon over the reference's."""
    ratio_95: tuple[float, float]
    gap: float
    """Success minus that of the most successful static horizon."""
    gap_95: tuple[float, float]
    against_curve: float
    """Success minus the static curve's at the same executed horizon."""
    against_curve_95: tuple[float, float]
    dominated_by: str
    """A static horizon with at least the success and at least the horizon; empty if none."""
    dominated: float
    """In how many of the resamples some static horizon was such."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One rule minus another on the same episodes, each with its 95 % interval."""

    success: float
    success_95: tuple[float, float]
    rounds: float
    """Per episode."""
    rounds_95: tuple[float, float]


def best_static(static: Mapping[str, Outcomes]) -> str:
    """The most successful rule; of equal ones the longest."""
    return max(static, key=lambda name: (static[name].rate, static[name].horizon))


def longest_equal(static: Mapping[str, Outcomes]) -> str:
    """The longest rule whose success is within WITHIN of the best one's."""
    enough = static[best_static(static)].rate - WITHIN - 1e-9
    return max(
        (name for name in static if static[name].rate >= enough),
        key=lambda name: static[name].horizon,
    )


def best_per_task(static: Mapping[str, Outcomes]) -> tuple[list[str], Outcomes]:
    """For each task the longest of its most successful rules, in hindsight, and what that gives."""
    tasks = len(next(iter(static.values())).success)
    names = [
        max(
            static,
            key=lambda n, t=task: (  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                static[n].success[t].mean(),
                static[n].actions[t].sum() / static[n].rounds[t].sum(),
            ),
        )
        for task in range(tasks)
    ]
    chosen = [
        np.stack([getattr(static[name], field)[task] for task, name in enumerate(names)])
        for field in ("success", "rounds", "actions")
    ]
    return names, Outcomes(*chosen)


def judge(
    static: Mapping[str, Outcomes], rule: str, ours: Outcomes, seed: int = 0
) -> RuleComparison:
    """`ours` against all of `static`, with 95 % intervals of RESAMPLES resamples."""
    names = list(static)
    best, reference = names.index(best_static(static)), names.index(longest_equal(static))
    rates, horizons = _resampled([*static.values(), ours], seed)
    at_rate = np.array([static[name].rate for name in names])
    at_horizon = np.array([static[name].horizon for name in names])
    beats = (at_rate >= ours.rate) & (at_horizon >= ours.horizon)
    resampled_beats = (rates[:, :-1] >= rates[:, -1:]) & (horizons[:, :-1] >= horizons[:, -1:])
    curves = [
        rate[-1] - _curve(horizon[:-1], rate[:-1], horizon[-1])
        for rate, horizon in zip(rates, horizons, strict=True)
    ]
    return RuleComparison(
        rule=rule,
        reference=names[reference],
        ratio=ours.horizon / at_horizon[reference],
        ratio_95=_interval(horizons[:, -1] / horizons[:, reference]),
        gap=ours.rate - float(at_rate[best]),
        gap_95=_interval(rates[:, -1] - rates[:, best]),
        against_curve=ours.rate - _curve(at_horizon, at_rate, ours.horizon),
        against_curve_95=_interval(np.array(curves)),
        dominated_by=names[int(np.flatnonzero(beats)[-1])] if beats.any() else "",
        dominated=float(resampled_beats.any(axis=1).mean()),
    )


def difference(ours: Outcomes, other: Outcomes, seed: int = 0) -> Difference:
    """`ours` minus `other`; episodes are resampled within each task, the same ones for both."""
    rng = np.random.default_rng(seed)
    tasks, episodes = ours.success.shape
    at = np.arange(tasks)[:, None]
    success = ours.success.astype(float) - other.success
    rounds = ours.rounds - other.rounds
    drawn = [rng.integers(episodes, size=(tasks, episodes)) for _ in range(RESAMPLES)]
    return Difference(
        float(success.mean()),
        _interval(np.array([success[at, d].mean() for d in drawn])),
        float(rounds.mean()),
        _interval(np.array([rounds[at, d].mean() for d in drawn])),
    )


def task_gap(ours: Outcomes, other: Outcomes, task: int) -> tuple[float, tuple[float, float]]:
    """Success of one task minus the other rule's, on the same episodes, with its 95 % interval."""
    difference = ours.success[task].astype(float) - other.success[task]
    rng = np.random.default_rng(0)
    drawn = rng.integers(difference.size, size=(RESAMPLES, difference.size))
    return float(difference.mean()), _interval(difference[drawn].mean(axis=1))


def horizon_interval(ours: Outcomes, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean executed horizon."""
    return _interval(_resampled([ours], seed)[1][:, 0])


def _resampled(rules: Sequence[Outcomes], seed: int) -> tuple[Any, Any]:
    """Success rates and mean horizons, [RESAMPLES, rules] each."""
    rng = np.random.default_rng(seed)
    tasks, episodes = rules[0].success.shape
    at = np.arange(tasks)[:, None]
    rates = np.empty((RESAMPLES, len(rules)))
    horizons = np.empty_like(rates)
    for i in range(RESAMPLES):
        drawn = rng.integers(episodes, size=(tasks, episodes))
        for j, rule in enumerate(rules):
            rates[i, j] = rule.success[at, drawn].mean()
            horizons[i, j] = rule.actions[at, drawn].sum() / rule.rounds[at, drawn].sum()
    return rates, horizons


def _curve(horizons: NDArray[Any], rates: NDArray[Any], at: float) -> float:
    order = np.argsort(horizons)
    return float(np.interp(at, horizons[order], rates[order]))


def _interval(values: NDArray[Any]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
