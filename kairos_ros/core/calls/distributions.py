"""How long the calls of one component take (Chen et al. §4.3)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KEPT = 512
"""The newest samples of a distribution."""
FIRST_CHECK = 8
"""Samples before convergence is looked at for the first time; then each time they double."""
ALIKE = 0.15
"""A distribution has converged when its Wasserstein distance to the one at half as many samples is
less than this share of its mean. Chen et al. have a threshold, too, but do not print it."""
QUANTILES = (np.arange(64) + 0.5) / 64


class Distribution:
    """Samples of one quantity, the newest `KEPT`."""

    def __init__(self) -> None:
        self.count = 0
        """Samples so far, dropped ones included."""
        self.converged = False
        """What was learned may be used: it has not moved since there were half as many samples."""
        self._ring = np.zeros(KEPT)
        self._before: NDArray[np.float64] | None = None
        self._check_at = FIRST_CHECK

    def add(self, value: float) -> None:
        self._ring[self.count % KEPT] = value
        self.count += 1
        if self.count < self._check_at:
            return
        self._check_at *= 2
        now = self.samples.copy()
        if self._before is not None:
            self.converged = wasserstein(self._before, now) < ALIKE * max(float(now.mean()), 1e-9)
        self._before = now

    @property
    def samples(self) -> NDArray[np.float64]:
        return self._ring[: min(self.count, KEPT)]

    @property
    def mean(self) -> float:
        """Raises ValueError without samples."""
        if not self.count:
            raise ValueError("a distribution without samples has no mean")
        return float(self.samples.mean())


def wasserstein(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Wasserstein-1 distance of two samples, float64 [n] each, neither of them empty: the mean
    distance of their quantiles, at 64 of them."""
    return float(np.abs(np.quantile(a, QUANTILES) - np.quantile(b, QUANTILES)).mean())


def ranked(samples: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Priority of each distribution, float64 [n]: how far it is from taking no time, on the line
    that keeps the pairwise Wasserstein distances best (Chen et al. §5.1).

    Classical multidimensional scaling into one dimension, with the distribution "zero" among them
    as the anchor. Smaller is shorter.
    """
    if not samples:
        return np.zeros(0)
    everything = [np.zeros(1), *samples]
    points = np.stack([np.quantile(one, QUANTILES) for one in everything])
    distance = np.abs(points[:, None] - points[None, :]).mean(axis=2)
    n = len(everything)
    centre = np.eye(n) - 1.0 / n
    values, vectors = np.linalg.eigh(-0.5 * centre @ (distance**2) @ centre)
    line = vectors[:, -1] * np.sqrt(max(float(values[-1]), 0.0))
    away: NDArray[np.float64] = np.abs(line[1:] - line[0])
    return away
