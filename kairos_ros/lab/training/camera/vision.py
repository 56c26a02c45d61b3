"""What a policy with cameras is told of its body's state, and what its eyes have to find out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kairos_ros.lab.training.camera.pictures import Record, Size
from kairos_ros.lab.training.demonstrations import Demonstrations

POSITION_UNIT_M, TURN_UNIT = 0.1, 0.5
"""The eyes tell positions in POSITION_UNIT_M, quaternions in TURN_UNIT."""
FAR = 5.0
"""In the units of `told`; what is further away, such as a puck on the floor, is just far."""


@dataclass(frozen=True, slots=True)
class Vision:
    """Of the scenes of one body."""

    policy: str
    """Name of the policy that ships for it."""
    cameras: Mapping[str, Size]
    """All of one size."""
    crops: Mapping[str, tuple[int, int, int, int]]
    """Camera -> top, left, height and width of what is looked at, some pixels inside."""
    own: tuple[int, ...]
    """Entries of the state that the body knows of itself: a policy with cameras reads these."""
    places: tuple[int, ...]
    """Entries of the state that only cameras can tell."""
    points: tuple[str, ...]
    """What `places` tells the position of."""
    positions: tuple[int, ...]
    """Entries of `places`: x, y and z of each point in m. All others are of quaternions."""
    centre_m: tuple[float, float, float]
    """Positions are told from here."""
    record: Record

    def units(self) -> tuple[np.ndarray, np.ndarray]:
        """Offset and unit, float32 [places] each: the eyes tell (places - offset) / unit."""
        offset = np.zeros(len(self.places), np.float32)
        unit = np.full(len(self.places), TURN_UNIT, np.float32)
        offset[list(self.positions)] = self.centre_m * len(self.points)
        unit[list(self.positions)] = POSITION_UNIT_M
        return offset, unit

    def told(self, places: np.ndarray) -> np.ndarray:
        """What the eyes shall tell, float32 [..., places], of `places` in m and quaternions."""
        offset, unit = self.units()
        told: np.ndarray = np.clip((places - offset) / unit, -FAR, FAR)
        return told

    def by_eye(self, demos: Demonstrations) -> Demonstrations:
        """Of demonstrations with the whole state: what the body knows of itself, and what the eyes
        shall tell of the rest."""
        seen = self.told(demos.state[:, list(self.places)])
        return replace(demos, state=demos.state[:, list(self.own)], seen=seen)
