"""Evidence that one rule loses less success than another, from paired episodes, at any time.

A test by betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting", 2023). Each pair of episodes gives d = 1 where the reference alone succeeded, -1 where
the candidate alone did, and 0 where both ended alike. A gambler who bets that d is less than
`margin` on average multiplies the capital by 1 + b (margin - d). If the true loss is `margin` or
more, the capital exceeds 1 / error with a probability of at most `error`, however often one looks
(Ville's inequality). So the errors of many tests add up to no more than the sum of what each was
allowed.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from kairos_ros.core.errors import ConfigError

_STAKES = np.geomspace(0.01, 0.98, 10)
"""Shares of the capital that can be lost in one pair: the capital is divided among them."""


@dataclass(frozen=True, slots=True)
class PairedOutcomes:
    """Counts of pairs of episodes that differ in nothing but the rule."""

    alike: int = 0
    lost: int = 0
    """The reference alone succeeded."""
    won: int = 0
    """The candidate alone succeeded."""

    @property
    def pairs(self) -> int:
        return self.alike + self.lost + self.won

    @property
    def loss(self) -> float:
        """Estimated loss of success, as a share; negative where the candidate succeeds more."""
        return (self.lost - self.won) / self.pairs if self.pairs else 0.0

    def and_pair(self, reference: bool, candidate: bool) -> "PairedOutcomes":
        """With one more pair."""
        if reference == candidate:
            return replace(self, alike=self.alike + 1)
        return replace(self, lost=self.lost + 1) if reference else replace(self, won=self.won + 1)

    @property
    def exchanged(self) -> "PairedOutcomes":
        """The same with the candidate as the reference."""
        return PairedOutcomes(self.alike, self.won, self.lost)

    def evidence(self, margin: float) -> float:
        """How much speaks for a loss below `margin` (a share in (-1, 1)), as the capital that the
        bets have made of 1. Raises ConfigError for another margin."""
        if not -1 < margin < 1:
            raise ConfigError(f"margin must be a share between -1 and 1, not {margin}")
        bets = _STAKES / (1 - margin)
        capital = (
            self.alike * np.log1p(bets * margin)
            + self.lost * np.log1p(bets * (margin - 1))
            + self.won * np.log1p(bets * (margin + 1))
        )
        return math.exp(min(float(np.logaddexp.reduce(capital)) - math.log(len(bets)), 700.0))
