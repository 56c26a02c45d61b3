"""Where robots without a place of their own stand: rows of a grid, the first nearest to the eye."""

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
    """Gives every robot the first free slot and keeps it until the robot has gone."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def take(self, robot: str) -> int:
        if robot not in self.of:
            taken = set(self.of.values())
            self.of[robot] = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        return self.of[robot]

    def free(self, robot: str) -> None:
        self.of.pop(robot, None)

    @property
    def size(self) -> int:
        """Slots up to the last one taken."""
        return max(self.of.values(), default=-1) + 1
