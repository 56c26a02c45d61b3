"""What a driver tells its servos: the command in force, within the limits of the joints."""

from collections.abc import Sequence

import numpy as np

from kairos_ros.lab.world.trajectory import Point, RejectedError, Trajectory, read_trajectory


class PositionController:
    """Follows the newest accepted command; without one, and after its end, it holds.

    Positions are kept within the joints' limits and change no faster than they can. Where the
    joints are outside when it starts, they stay until a command brings them in. Times are those of
    one clock, in s.
    """

    def __init__(
        self,
        joints: Sequence[str],
        limits: np.ndarray,
        velocities: np.ndarray,
        start: np.ndarray,
    ) -> None:
        """`limits` float64 [n, 2], `velocities` float64 [n], `start` float64 [n]."""
        self.joints = tuple(joints)
        self.accepted = 0
        self.rejected = 0
        self.clipped = 0
        """Periods in which a command asked for more than a limit of a joint allows."""
        self.last_rejection = ""
        self.rejects_all = False
        self.powered = True
        self._limits, self._velocities = limits, velocities
        self._command: Trajectory | None = None
        self._since_s = 0.0
        self.hold_at(start)

    def follow(
        self, names: Sequence[str], points: Sequence[Point], now_s: float, begins_s: float | None
    ) -> None:
        """Carry out a trajectory from `begins_s`, None being now. Raises RejectedError."""
        try:
            self._refuse_if_told()
            command = read_trajectory(
                self.joints,
                names,
                points,
                now_s if begins_s is None else begins_s,
                now_s,
                self._setpoint,
                self._velocity,
            )
        except RejectedError as error:
            self._reject(error)
            raise
        self._accept(command, now_s)

    def go_to(self, positions: Sequence[float], now_s: float) -> None:
        """Go there at once, `positions` being one per joint. Raises RejectedError."""
        try:
            self._refuse_if_told()
            if len(positions) != len(self.joints):
                raise RejectedError(
                    f"command size ({len(positions)}) does not match the number of joints "
                    f"({len(self.joints)})"
                )
            target = np.array(positions, np.float64)
            if not np.isfinite(target).all():
                raise RejectedError("positions are not finite")
        except RejectedError as error:
            self._reject(error)
            raise
        self._accept(Trajectory(np.zeros(1), target[None], None), now_s)

    def hold_at(self, positions: np.ndarray) -> None:
        """Forget the command and stay there, float64 [n]."""
        self._setpoint: np.ndarray = np.array(positions, np.float64)
        self._velocity = np.zeros(len(self.joints))
        self._command = None

    def setpoint(self, now_s: float, period_s: float) -> np.ndarray:
        """What the servos are told for the next `period_s`, float64 [n]."""
        if self._command is None:
            return self._setpoint
        wanted = self._command.at(now_s + period_s - self._since_s)
        inside = np.clip(wanted, *self._limits.T)
        step = self._velocities * period_s
        allowed: np.ndarray = self._setpoint + np.clip(inside - self._setpoint, -step, step)
        self.clipped += not np.allclose(wanted, inside, atol=1e-6)
        self._velocity = (allowed - self._setpoint) / period_s
        self._setpoint = allowed
        return allowed

    def _refuse_if_told(self) -> None:
        if self.rejects_all:
            raise RejectedError("the controller is not active")
        if not self.powered:
            raise RejectedError("the torque is off")

    def _accept(self, command: Trajectory, now_s: float) -> None:
        self.accepted += 1
        self._command, self._since_s = command, now_s

    def _reject(self, error: RejectedError) -> None:
        self.rejected += 1
        self.last_rejection = str(error)
