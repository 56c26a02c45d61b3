"""Joint trajectories, checked and interpolated as by ros2_control's joint_trajectory_controller."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np

from kairos_ros.core.errors import KairosError


class RejectedError(KairosError):
    """A command that the driver does not carry out; the one before stays in force."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a trajectory, as a message has it."""

    time_s: float
    """From the trajectory's start."""
    positions: Sequence[float]
    velocities: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Where the joints shall be, from the moment it was accepted on."""

    times_s: np.ndarray
    """float64 [m], growing; the first is where the joints were told to be when it came."""
    positions: np.ndarray
    """float64 [m, n]."""
    velocities: np.ndarray | None
    """float64 [m, n]; None: straight from point to point."""

    def at(self, time_s: float) -> np.ndarray:
        """float64 [n]: cubic between points with velocities, else linear; the last point stays."""
        times = self.times_s
        after = int(np.searchsorted(times, time_s, side="right"))
        if after == 0:
            return cast(np.ndarray, self.positions[0])
        if after == len(times):
            return cast(np.ndarray, self.positions[-1])
        span = times[after] - times[after - 1]
        share = (time_s - times[after - 1]) / span
        p0: np.ndarray = self.positions[after - 1]
        p1: np.ndarray = self.positions[after]
        at: np.ndarray
        if self.velocities is None:
            at = p0 + share * (p1 - p0)
            return at
        v0, v1 = span * self.velocities[after - 1], span * self.velocities[after]
        s2, s3 = share**2, share**3
        blend = (2 * s3 - 3 * s2 + 1, s3 - 2 * s2 + share, 3 * s2 - 2 * s3, s3 - s2)
        at = blend[0] * p0 + blend[1] * v0 + blend[2] * p1 + blend[3] * v1
        return at


def read_trajectory(
    joints: Sequence[str],
    names: Sequence[str],
    points: Sequence[Point],
    begins_s: float,
    now_s: float,
    position: np.ndarray,
    velocity: np.ndarray,
) -> Trajectory:
    """A trajectory for `joints` from one that names them in any order.

    Args:
        begins_s: when it shall begin, on the clock of `now_s`.
        position, velocity: what the joints are told at `now_s`, float64 [n]; where it sets out.

    Raises RejectedError for what joint_trajectory_controller rejects: joints that are not exactly
    the controller's, no points, points out of order or in the past, numbers missing or not finite.
    """
    if sorted(names) != sorted(joints):
        strange = sorted(set(names) - set(joints))
        missing = sorted(set(joints) - set(names))
        raise RejectedError(
            "joints on incoming trajectory don't match the controller joints: "
            + "; ".join(
                f"{what} {', '.join(some)}"
                for what, some in (("unknown", strange), ("missing", missing))
                if some
            )
            if strange or missing
            else f"joints on incoming trajectory are named twice: {', '.join(names)}"
        )
    if not points:
        raise RejectedError("the trajectory has no points")
    times = [point.time_s for point in points]
    if times[0] < 0 or any(b <= a for a, b in pairwise(times)):
        raise RejectedError(f"time_from_start does not grow from point to point: {times[:8]} s")
    if begins_s + times[-1] < now_s - 1e-9 and begins_s < now_s:
        raise RejectedError(f"the trajectory ended {now_s - begins_s - times[-1]:.2f} s ago")
    order = [list(names).index(joint) for joint in joints]
    smooth = all(len(point.velocities) for point in points)
    path = _rows([point.positions for point in points], order, "positions")
    speeds = _rows([point.velocities for point in points], order, "velocities") if smooth else None
    at = begins_s - now_s + np.array(times)
    ahead = at > 0.0  # what is past is skipped
    if not ahead.any():
        ahead[-1] = True
    start = np.array([min(0.0, at[ahead][0] - 1e-9)])
    return Trajectory(
        np.concatenate([start, at[ahead]]),
        np.vstack([position, path[ahead]]),
        None if speeds is None else np.vstack([velocity, speeds[ahead]]),
    )


def _rows(rows: Sequence[Sequence[float]], order: list[int], what: str) -> np.ndarray:
    if any(len(row) != len(order) for row in rows):
        raise RejectedError(f"a point has not {len(order)} {what}, one per joint")
    values = np.array(rows, np.float64)[:, order]
    if not np.isfinite(values).all():
        raise RejectedError(f"{what} are not finite")
    return values
