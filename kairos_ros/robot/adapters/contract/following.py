"""Whether joints do what they are told."""

from collections.abc import Sequence

import numpy as np

from kairos_ros.robot.adapters.contract.contract import ContractJoint, Following

STILL = 0.02
"""rad or m: a joint that has moved by less stands still."""


class FollowingCheck:
    """Finds joints that stand still although they were told to be elsewhere."""

    def __init__(self, joints: Sequence[ContractJoint], allowed: Following) -> None:
        self._joints, self._allowed = joints, allowed
        self._must = np.array([not joint.grips for joint in joints])
        self.restart()

    def restart(self) -> None:
        """Nothing was told yet."""
        self._at: np.ndarray | None = None
        self._now_ns = 0

    def held(self, now_ns: int) -> None:
        """One control period in which nothing was told: it does not count. Those before do, as an
        arm that runs out of actions holds again and again."""
        if self._at is not None:
            self._since_ns += now_ns - self._now_ns
        self._now_ns = now_ns

    def told(self, now_ns: int, targets: np.ndarray, positions: np.ndarray, heard_ns: int) -> str:
        """One control period; float64 [joints] each, rad or m. Why it is not following, or empty.

        A joint is given time from when it last moved; what counts is the farthest of its targets
        since then, as chunks begin anew near an arm that does not move. heard_ns: when the
        positions came; of a driver that says nothing, nobody knows whether its joints move.
        """
        self._now_ns = now_ns
        if self._at is None:
            self._at, self._since_ns = positions.copy(), np.full(len(positions), now_ns)
            self._farthest = np.zeros(len(positions))
        moved = np.abs(positions - self._at) > STILL
        self._at[moved], self._since_ns[moved] = positions[moved], now_ns
        self._farthest[moved] = 0.0
        self._farthest = np.maximum(self._farthest, np.abs(targets - positions))
        still_s = (heard_ns - self._since_ns) / 1e9
        late = self._must & (still_s > self._allowed.within_s)
        late &= self._farthest > self._allowed.tolerance
        if not late.any():
            return ""
        worst = int(np.argmax(np.where(late, self._farthest, 0.0)))
        unit = "rad" if self._joints[worst].kind == "revolute" else "m"
        return (
            f"joint {self._joints[worst].name} has not moved for {still_s[worst]:.1f} s, although "
            f"its target was {self._farthest[worst]:.2f} {unit} away: it is blocked, has no "
            "torque, or its controller rejects what it is told (see the driver's log)"
        )
