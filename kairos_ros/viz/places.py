"""Where robots without a place of their own stand: rows of a grid, the first nearest to the eye."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kairos_ros.viz.shape import Point


@dataclass(frozen=True, slots=True)
class Grid:
    """Slot 0 is front left as seen from where the arms reach to (+y)."""

    columns: int = 4
    spacing_m: float = 1.6
    row_spacing_m: float = 2.2

    def at(self, slot: int, slots: int) -> Point:
        """Centre of a slot's cell, in m. Once the first row is full, none of the `slots` moves."""
        row, column = divmod(slot, self.columns)
        return (
            ((min(self.columns, slots) - 1) / 2 - column) * self.spacing_m,
            -row * self.row_spacing_m,
            0.0,
        )

    def back(self, slots: int) -> float:
        """y of the wall behind so many slots, in m."""
        rows = max(1, -(-slots // self.columns))
        return -(rows - 0.5) * self.row_spacing_m


class Slots:
    """Robots stand in the order of their names; who comes may shift the others, who leaves not."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def update(self, robots: Iterable[str]) -> None:
        """Those who are there now."""
        here = set(robots)
        if here - self.of.keys():
            order = sorted(here, key=_natural)
            self.of = {robot: slot for slot, robot in enumerate(order)}
        for robot in self.of.keys() - here:
            del self.of[robot]

    @property
    def size(self) -> int:
        """Slots up to the last one taken."""
        return max(self.of.values(), default=-1) + 1


def _natural(name: str) -> list[tuple[int, str]]:
    """arm_2 before arm_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
