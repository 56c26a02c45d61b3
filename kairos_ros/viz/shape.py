"""Plain descriptions of what is drawn: metres, in the frame that each shape names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

Point = tuple[float, float, float]
Coordinates = Sequence[float] | np.ndarray
"""x, y and z."""
Path = Sequence[Coordinates] | np.ndarray
Colour = tuple[float, float, float, float]
"""Red, green, blue and opacity, 0 to 1."""
UPRIGHT = (0.0, 0.0, 0.0, 1.0)


class MarkerKind(IntEnum):
    """Values are those of visualization_msgs/Marker."""

    BOX = 1
    BALL = 2
    ROD = 3
    STRIP = 4
    SEGMENTS = 5
    BALLS = 7
    LABEL = 9


@dataclass(frozen=True, slots=True)
class Shape:
    """One marker. Of `scale`, a kind uses what `USED` says; the rest is 0."""

    ns: str
    """What it shows, the same for all robots: rviz hides and shows by this name."""
    id: int
    """Unique within `ns`."""
    kind: MarkerKind
    frame: str
    scale: Point
    colour: Colour
    position: Point = (0.0, 0.0, 0.0)
    orientation: tuple[float, float, float, float] = UPRIGHT
    """Quaternion x, y, z, w."""
    points: tuple[Point, ...] = ()
    colours: tuple[Colour, ...] = ()
    """One per point, or none: all are of `colour`."""
    text: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.ns, self.id


USED = {
    MarkerKind.BOX: (0, 1, 2),
    MarkerKind.BALL: (0, 1, 2),
    MarkerKind.ROD: (0, 1, 2),
    MarkerKind.STRIP: (0,),
    MarkerKind.SEGMENTS: (0,),
    MarkerKind.BALLS: (0, 1, 2),
    MarkerKind.LABEL: (2,),
}
"""Entries of `Shape.scale` that a kind has; rviz asks for the others to be 0."""


@dataclass(frozen=True, slots=True)
class ShapeBuilder:
    """Draws the shapes of one namespace, in one frame, numbered from `first` on."""

    ns: str
    frame: str
    first: int = 0

    def box(self, number: int, centre: Point, size: Point, colour: Colour) -> Shape:
        return Shape(
            self.ns, self.first + number, MarkerKind.BOX, self.frame, size, colour, point(centre)
        )

    def ball(self, number: int, centre: Point, diameter: float, colour: Colour) -> Shape:
        size = (diameter, diameter, diameter)
        return Shape(
            self.ns, self.first + number, MarkerKind.BALL, self.frame, size, colour, point(centre)
        )

    def rod(
        self, number: int, start: Point, end: Point, diameter: float, colour: Colour
    ) -> Shape | None:
        """A cylinder from `start` to `end`; None where they coincide."""
        a, b = np.asarray(start, float), np.asarray(end, float)
        length = float(np.linalg.norm(b - a))
        if length < 1e-6:
            return None
        return Shape(
            self.ns,
            self.first + number,
            MarkerKind.ROD,
            self.frame,
            (diameter, diameter, length),
            colour,
            point((a + b) / 2),
            turned_from_z((b - a) / length),
        )

    def strip(
        self,
        number: int,
        points: Path,
        width: float,
        colour: Colour,
        colours: Sequence[Colour] = (),
    ) -> Shape | None:
        """A line through at least two points; None through fewer."""
        if len(points) < 2:
            return None
        through = tuple(point(p) for p in points)
        return Shape(
            self.ns,
            self.first + number,
            MarkerKind.STRIP,
            self.frame,
            (width, 0.0, 0.0),
            colour,
            points=through,
            colours=tuple(colours),
        )

    def segments(self, number: int, points: Path, width: float, colour: Colour) -> Shape | None:
        """Lines from every even point to the next odd one; None without any."""
        if len(points) < 2:
            return None
        ends = tuple(point(p) for p in points[: len(points) // 2 * 2])
        return Shape(
            self.ns,
            self.first + number,
            MarkerKind.SEGMENTS,
            self.frame,
            (width, 0.0, 0.0),
            colour,
            points=ends,
        )

    def balls(
        self,
        number: int,
        points: Path,
        diameter: float,
        colour: Colour,
    ) -> Shape | None:
        """Equal balls at every point; None without any."""
        if not len(points):
            return None
        size = (diameter, diameter, diameter)
        return Shape(
            self.ns,
            self.first + number,
            MarkerKind.BALLS,
            self.frame,
            size,
            colour,
            points=tuple(point(p) for p in points),
        )

    def label(self, number: int, centre: Point, height: float, text: str, colour: Colour) -> Shape:
        """Text that faces whoever looks; `height`: of a capital letter."""
        return Shape(
            self.ns,
            self.first + number,
            MarkerKind.LABEL,
            self.frame,
            (0.0, 0.0, height),
            colour,
            point(centre),
            text=text or " ",
        )


def point(of: Coordinates) -> Point:
    """Rounded to a tenth of a millimetre: what has not moved is not sent again."""
    return round(float(of[0]), 4), round(float(of[1]), 4), round(float(of[2]), 4)


def turned_from_z(direction: np.ndarray) -> tuple[float, float, float, float]:
    """The unit quaternion x, y, z, w that turns the z axis to the unit vector `direction`."""
    x, y, z = (float(v) for v in direction)
    if z < -1 + 1e-9:
        return 1.0, 0.0, 0.0, 0.0
    w = math.sqrt((1 + z) / 2)
    return -y / (2 * w), x / (2 * w), 0.0, w
