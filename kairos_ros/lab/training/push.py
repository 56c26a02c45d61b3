"""Pushes of a simulated hand, drawn by the episode's seed."""

from dataclasses import dataclass

import numpy as np

from kairos_ros.robot.adapters.sim.sim import SimAdapter

FIRST, LAST = 10, 50
"""Actions of an episode before which a push begins."""


@dataclass(frozen=True, slots=True)
class Push:
    """Somebody pushes the hand aside while it works, and lets go."""

    at: int
    """Actions executed before it begins."""
    periods: int
    """It lasts."""
    offset_m: tuple[float, float, float]
    """Whole displacement."""

    def happen(self, body: SimAdapter, executed: int) -> None:
        """Before the action that follows `executed` others."""
        if self.at <= executed < self.at + self.periods:
            body.push(np.array(self.offset_m) / self.periods)


def draw_push(seed: int, metres: float, periods: int) -> Push:
    """Horizontal, in any direction, beginning before action FIRST to LAST; by the seed alone."""
    rng = np.random.default_rng((seed, 2))
    at, angle = int(rng.integers(FIRST, LAST)), rng.uniform(0, 2 * np.pi)
    return Push(at, periods, (metres * np.cos(angle), metres * np.sin(angle), 0.0))
