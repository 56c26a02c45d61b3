"""Between a driver's positions and a policy's units: one straight line per joint."""

from collections.abc import Sequence

import numpy as np

from kairos_ros.robot.adapters.contract.contract import ContractJoint
from kairos_ros.robot.guard import GuardLimits


class JointUnits:
    """`policy = scale * position + bias`, for joints in the policy's order."""

    def __init__(self, joints: Sequence[ContractJoint]) -> None:
        lines = [_line(joint) for joint in joints]
        self._scale = np.array([scale for scale, _ in lines])
        self._bias = np.array([bias for _, bias in lines])
        self._lower = np.array([joint.lower for joint in joints])
        self._upper = np.array([joint.upper for joint in joints])
        self._velocity = np.array([joint.max_velocity for joint in joints])

    def policy(self, positions: np.ndarray) -> np.ndarray:
        """float64 [n] in rad or m -> float64 [n] in the policy's units."""
        told: np.ndarray = self._scale * positions + self._bias
        return told

    def positions(self, policy: np.ndarray) -> np.ndarray:
        """float [n] in the policy's units -> float64 [n] in rad or m, within the limits."""
        exact = (policy.astype(np.float64) - self._bias) / self._scale
        within: np.ndarray = np.clip(exact, self._lower, self._upper)
        return within

    def limits(self) -> GuardLimits:
        """For the action guard, in the policy's units."""
        ends = np.stack([self.policy(self._lower), self.policy(self._upper)])
        return GuardLimits(
            minimum=[float(low) for low in ends.min(0)],
            maximum=[float(high) for high in ends.max(0)],
            max_rate=[float(rate) for rate in np.abs(self._scale) * self._velocity],
            measured_by=list(range(len(self._scale))),
        )


def _line(joint: ContractJoint) -> tuple[float, float]:
    span = joint.upper - joint.lower
    match joint.unit:
        case "range_0_100":
            scale, bias = 100.0 / span, -100.0 * joint.lower / span
            return (scale, bias) if joint.sign > 0 else (-scale, 100.0 - bias)
        case "range_m100_100":
            scale, bias = 200.0 / span, -200.0 * joint.lower / span - 100.0
            return joint.sign * scale, joint.sign * bias
        case "degrees":
            scale = joint.sign * 180.0 / np.pi
        case "radians" | "metres":
            scale = float(joint.sign)
    return scale, -scale * joint.zero
