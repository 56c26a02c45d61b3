"""What happens to a simulated arm or its object in an episode, drawn by the episode's seed."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kairos_ros.robot.adapters.sim.sim import SimAdapter

FIRST, LAST = 10, 50
"""Actions of an episode before which it begins."""


class Event(Protocol):
    """Something that happens to the arm or its object."""

    def happen(self, body: SimAdapter, executed: int) -> None:
        """Before the action that follows `executed` others."""


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
        if self.at <= executed < self.at + self.periods:
            body.push(np.array(self.offset_m) / self.periods)


@dataclass(frozen=True, slots=True)
class Knock:
    """The scene's loose object is knocked away."""

    at: int
    """Actions executed before it."""
    velocity_m_s: tuple[float, float, float]

    def happen(self, body: SimAdapter, executed: int) -> None:
        if executed == self.at:
            body.knock(np.array(self.velocity_m_s))


def draw_push(seed: int, metres: float, periods: int) -> Push:
    """Horizontal, in any direction, beginning before action FIRST to LAST; by the seed alone."""
    at, x, y = _draw(seed)
    return Push(at, periods, (metres * x, metres * y, 0.0))


def draw_knock(seed: int, speed_m_s: float) -> Knock:
    """Horizontal, in any direction, before action FIRST to LAST; by the seed alone."""
    at, x, y = _draw(seed)
    return Knock(at, (speed_m_s * x, speed_m_s * y, 0.0))


def _draw(seed: int) -> tuple[int, float, float]:
    """When, and a direction of length 1."""
    rng = np.random.default_rng((seed, 2))
    at, angle = int(rng.integers(FIRST, LAST)), rng.uniform(0, 2 * np.pi)
    return at, float(np.cos(angle)), float(np.sin(angle))
