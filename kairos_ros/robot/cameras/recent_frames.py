"""When a robot took its pictures. Judges echo a stamp; only the robot knows when that was.

Stamps are names, not times: clocks of two hosts are never compared.
"""

from dataclasses import dataclass

KEPT = 256
"""Pictures remembered: many seconds at any sensible rate."""


@dataclass(frozen=True, slots=True)
class CameraFrame:
    """One look at the cell."""

    taken_ns: int
    """Monotonic clock; the oldest of its pictures."""
    task: str
    """Id of the task that was running."""


class RecentFrames:
    """Written by one thread, read by any."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, int], CameraFrame] = {}

    def note(self, stamp: tuple[int, int], frame: CameraFrame) -> None:
        """stamp: seconds and nanoseconds, as in the picture's header."""
        if len(self._frames) >= KEPT:
            del self._frames[next(iter(self._frames))]
        self._frames[stamp] = frame

    def find(self, stamp: tuple[int, int]) -> CameraFrame | None:
        """None for a picture that this robot did not take, or took long ago."""
        return self._frames.get(stamp)
