"""Joint positions that bring the tip of a chain to a point."""

import numpy as np

from kairos_ros.robot.description.kinematics import Chain

ITERATIONS = 80
DAMPING = 0.02
STEP_RAD = 0.3
SMALL_RAD = 1e-4
HOMEWARD = 0.05
DOWNWARD = 0.5
MARGIN = 0.02
"""Distance kept from joint limits."""
DOWN = np.array([0.0, 0.0, -1.0])


def reaching(
    chain: Chain, target: np.ndarray, home: np.ndarray, looks_down: bool = False
) -> np.ndarray:
    """Joint positions float64 [n] with the tip at `target` float64 [3], in m in the base's frame.

    Damped least squares from `home` float64 [n] on; what the position leaves free stays near home
    and, if `looks_down`, turns the tip's z axis down. The same target gives the same positions,
    near targets near ones. A target out of reach is approached as far as it goes.
    """
    low, high = chain.limits.T + np.array([[MARGIN], [-MARGIN]])
    q = home.copy()
    for _ in range(ITERATIONS):
        pose, jacobian = chain.tip(q), chain.jacobian(q)
        linear, angular = jacobian[:3], jacobian[3:]
        inverse = linear.T @ np.linalg.inv(linear @ linear.T + DAMPING**2 * np.eye(3))
        wish = HOMEWARD * (home - q)
        if looks_down:
            axis = pose[:3, 2]
            wish += DOWNWARD * angular.T @ np.cross(axis, DOWN)
        step = inverse @ (target - pose[:3, 3]) + (np.eye(len(q)) - inverse @ linear) @ wish
        longest = np.abs(step).max()
        if longest < SMALL_RAD:
            break
        q = np.clip(q + step * min(1.0, STEP_RAD / longest), low, high)
    return q
