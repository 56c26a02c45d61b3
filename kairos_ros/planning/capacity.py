"""How much one server of a model can carry, by its profile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.load_profile import QUANTILES, Floats, LoadProfile

SLO_QUANTILE = QUANTILES.index(0.99)
"""Rosa, Table 1: all latency SLOs are p99."""

ROUNDING_S = 1e-9
"""A latency that is longer than its limit by less keeps it."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """How a server runs at some load. Latencies are without network."""

    batch: int
    mean_s: float
    slo_quantile_s: float
    memory_mib: float
    limit_hz: float


@dataclass(frozen=True, slots=True)
class _Curve:
    batch: int
    memory_mib: float
    rates: Floats
    mean: Floats
    tail: Floats


class ModelCapacity:
    """Of one model on one kind of GPU; batchings that do not fit its memory are left out."""

    def __init__(self, profile: LoadProfile, memory_mib: float) -> None:
        self.profile = profile
        self._curves = [
            _Curve(
                load.batch,
                load.memory_mib,
                np.array(load.rates_hz),
                np.maximum.accumulate(load.mean_s),
                np.maximum.accumulate(load.quantiles_s[SLO_QUANTILE]),
            )
            for load in profile.loads
            if load.memory_mib <= memory_mib
        ]
        self._limits: dict[tuple[float, float], tuple[float, ...]] = {}

    @property
    def fits(self) -> bool:
        """Whether any batching fits the memory."""
        return bool(self._curves)

    @property
    def max_rate_hz(self) -> float:
        """Whatever the latency."""
        return max((float(curve.rates[-1]) for curve in self._curves), default=0.0)

    @property
    def least_mean_s(self) -> float:
        """Of a server without load."""
        return min(float(curve.mean[0]) for curve in self._curves)

    def limits(self, slo_s: float, mean_s: float = np.inf) -> tuple[float, ...]:
        """The most requests/s at which the SLO's quantile and the mean stay within, for each
        batching that fits; 0 where none does."""
        known = self._limits.get((slo_s, mean_s))
        if known is None:
            known = self._limits[slo_s, mean_s] = tuple(
                min(_inverse(c.rates, c.tail, slo_s), _inverse(c.rates, c.mean, mean_s))
                for c in self._curves
            )
        return known

    def at(self, rate_hz: float, limits_hz: Sequence[float]) -> OperatingPoint | None:
        """Of the batchings whose limit this rate keeps, that with the least mean latency."""
        found = []
        for curve, limit in zip(self._curves, limits_hz, strict=True):
            if rate_hz <= limit * (1 + 1e-9):
                mean, tail = (
                    float(np.interp(rate_hz, curve.rates, line))
                    for line in (curve.mean, curve.tail)
                )
                found.append(OperatingPoint(curve.batch, mean, tail, curve.memory_mib, limit))
        return min(found, key=lambda one: (one.mean_s, one.batch), default=None)

    def tail_s(self, rate_hz: float) -> float:
        """The SLO's quantile at this rate with the batching for which it is least; infinite
        beyond what the model answers."""
        tails = (
            float(np.interp(rate_hz, c.rates, c.tail))
            for c in self._curves
            if rate_hz <= c.rates[-1]
        )
        return min(tails, default=np.inf)


def _inverse(rates: Floats, rising: Floats, limit: float) -> float:
    """The largest rate whose value is within; linear between rates, constant below the first."""
    i = int(np.searchsorted(rising, limit + ROUNDING_S, side="right"))
    if i == 0:
        return 0.0
    if i == len(rates):
        return float(rates[-1])
    share = max(0.0, limit - rising[i - 1]) / (rising[i] - rising[i - 1])
    return float(rates[i - 1] + share * (rates[i] - rates[i - 1]))
