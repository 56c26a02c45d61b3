"""A driver without its topics: a controller that tells the servos of a simulated arm what to do."""

from collections.abc import Sequence

import numpy as np

from kairos_ros.lab.world.controller import PositionController
from kairos_ros.lab.world.trajectory import Point
from kairos_ros.lab.world.world import ArmWorld
from kairos_ros.robot.description.arm import ArmDescription

RATE_HZ = 100.0
REACH_S = 0.1
"""Each of a policy's targets is sent as a trajectory of one point so far ahead."""


class SimulatedDriver:
    """Moves on by one period of its own clock per `tick`."""

    def __init__(
        self, arm: ArmDescription, start: Sequence[float] = (), rate_hz: float = RATE_HZ
    ) -> None:
        """Raises ConfigError where `start` is not one position per joint."""
        self.world = ArmWorld(arm, start)
        self.controller = PositionController(
            arm.joints, arm.limits, arm.velocities, self.world.read().position
        )
        self.time_s = 0.0
        self.period_s = 1.0 / rate_hz
        self._owed_s = 0.0

    def tick(self) -> None:
        setpoint = self.controller.setpoint(self.time_s, self.period_s)
        self.world.step(setpoint, self.period_s)
        self.time_s += self.period_s

    def act(self, action: np.ndarray, rate_hz: float) -> None:
        """One action float64 [joints] of a policy that gives `rate_hz` of them, carried out."""
        point = Point(REACH_S, action.tolist())
        self.controller.follow(self.world.arm.joints, [point], self.time_s, None)
        self._owed_s += 1.0 / rate_hz
        while self._owed_s > self.period_s / 2:
            self.tick()
            self._owed_s -= self.period_s

    def torque(self, on: bool) -> None:
        """Off: the joints are let go and commands rejected. On: they are held where they are."""
        self.world.power(on)
        self.controller.powered = on
        self.controller.hold_at(self.world.read().position)

    def place(self, positions: np.ndarray) -> None:
        """Put the joints there, at rest, float64 [joints], as by hand; the command is forgotten."""
        self.world.place(positions)
        self.controller.hold_at(positions)
        self._owed_s = 0.0
