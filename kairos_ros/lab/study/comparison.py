"""What a study claims, from its table: reductions paired by seed, and the best of several values.

Cells that share a seed share tasks, arrivals and latencies, so a reduction is computed seed by seed
and then summarised: the difference between seeds does not blur it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import pandas as pd

from kairos_ros.lab.study.definition import Best, Compare, Value

STALLS = "stall_fraction"
"""Decides where robots stall most."""
SAME = 0.005
"""Reductions within this of zero are no difference."""

Verdict = Literal["lower", "higher", "same", "unclear"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """How far a metric of ours is below the baseline's, as shares of the baseline's."""

    metric: str
    per: Mapping[str, Value]
    at: Mapping[str, Value]
    """With `worst` resolved."""
    ours: float
    baseline: float
    """Medians over seeds."""
    by_seed: tuple[float, ...]
    paper: str = ""
    """What Dai et al. give."""

    @property
    def median(self) -> float:
        return float(pd.Series(self.by_seed).median())

    @property
    def verdict(self) -> Verdict:
        """lower or higher: on every seed."""
        if all(abs(r) <= SAME for r in self.by_seed):
            return "same"
        if all(r > 0 for r in self.by_seed):
            return "lower"
        return "higher" if all(r < 0 for r in self.by_seed) else "unclear"


@dataclass(frozen=True, slots=True)
class Optimum:
    """The value with the lowest median of a metric."""

    metric: str
    per: Mapping[str, Value]
    at: Mapping[str, Value]
    best: Value
    gain: Reduction
    """Of the best value against the reference."""
    worst: Value
    loss: Reduction
    """Of the worst value against the reference."""


def reductions(frame: pd.DataFrame, claim: Compare) -> list[Reduction]:
    """One per metric and combination of `claim.per`; combinations without cells are left out."""
    found = []
    for name, per in product(claim.metric, _groups(frame, claim.per)):
        rows = _where(frame, per)
        at = _resolved(rows, claim)
        rows = _where(rows, at)
        pair = _reduction(name, per, at, _where(rows, claim.ours), _where(rows, claim.baseline))
        if pair is not None:
            found.append(replace(pair, paper=claim.paper.get(name, "")))
    return found


def optima(frame: pd.DataFrame, claim: Best) -> list[Optimum]:
    """One per metric and combination of `claim.per`; combinations without cells are left out."""
    found = []
    for name, per in product(claim.metric, _groups(frame, claim.per)):
        rows = _where(_where(frame, per), claim.at)
        medians = rows.groupby(claim.over, sort=False)[name].median().dropna()
        if medians.empty or claim.reference not in medians.index:
            continue
        reference = _where(rows, {claim.over: claim.reference})
        best, worst = medians.idxmin(), medians.idxmax()
        gain, loss = (
            _reduction(name, per, claim.at, _where(rows, {claim.over: value}), reference)
            for value in (best, worst)
        )
        if gain is not None and loss is not None:
            found.append(Optimum(name, per, claim.at, best, gain, worst, loss))
    return found


def _reduction(
    name: str,
    per: Mapping[str, Value],
    at: Mapping[str, Value],
    ours: pd.DataFrame,
    baseline: pd.DataFrame,
) -> Reduction | None:
    pairs = pd.DataFrame({"one": _by_seed(ours, name), "other": _by_seed(baseline, name)}).dropna()
    if pairs.empty:
        return None
    one, other = pairs["one"], pairs["other"]
    # nothing to reduce: 0 against 0 is no reduction, anything against 0 an infinite increase
    shares = (1 - one / other).where(other != 0, (one != 0) * -float("inf")).fillna(0.0)
    return Reduction(name, per, at, float(one.median()), float(other.median()), tuple(shares))


def _by_seed(rows: pd.DataFrame, name: str) -> pd.Series:
    return rows.set_index("seed")[name]


def _resolved(rows: pd.DataFrame, claim: Compare) -> dict[str, Value]:
    """`claim.at` with each `worst` replaced by the value where the baseline stalls most."""
    at = dict(claim.at)
    for name in [name for name, value in at.items() if value == "worst"]:
        fixed = {key: value for key, value in at.items() if value != "worst"}
        stalls = _where(_where(rows, claim.baseline), fixed).groupby(name)[STALLS].median()
        at[name] = stalls.idxmax() if stalls.notna().any() else None
    return at


def _groups(frame: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Value]]:
    if not names:
        return [{}]
    rows = frame[list(names)].drop_duplicates()
    return [dict(zip(names, row, strict=True)) for row in rows.itertuples(index=False, name=None)]


def _where(frame: pd.DataFrame, labels: Mapping[str, Value]) -> pd.DataFrame:
    for name, value in labels.items():
        frame = frame[frame[name] == value]
    return frame
