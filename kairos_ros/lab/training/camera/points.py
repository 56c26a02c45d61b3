"""Where the things that a task is about are: in the cell, and in a camera's picture.

Training alone knows it: a network that has to point at hand, object and goal is told what to look
for, which three words about a whole picture do not.
"""

from typing import Any

import numpy as np

from kairos_ros.robot.adapters.sim.sim import UPSIDE_DOWN

POINTS = ("hand", "object", "goal")


def task_points(obs: np.ndarray) -> np.ndarray:
    """float32 [3, 3], m: POINTS of Meta-World's observation `obs`."""
    return np.stack([obs[0:3], obs[4:7], obs[36:39]]).astype(np.float32)


def projected(env: Any, camera: str, points: np.ndarray, aspect: float = 1.0) -> np.ndarray:
    """Where `points` [N, 3] of the world lie in the upright picture of a camera, as `env` is now.

    aspect: width of the picture over its height. float32 [N, 2]: right and down, shares of the
    picture; outside of it below 0 or above 1.
    """
    model, data = env.unwrapped.model, env.unwrapped.data
    number = model.camera(camera).id
    seen = (points - data.cam_xpos[number]) @ data.cam_xmat[number].reshape(3, 3)
    focal = 0.5 / np.tan(np.radians(model.cam_fovy[number]) / 2)
    ahead = np.maximum(-seen[:, 2], 1e-6)
    there = np.stack([seen[:, 0] / aspect, -seen[:, 1]], 1) / ahead[:, None]
    rendered: np.ndarray = 0.5 + focal * there
    upright = 1 - rendered if camera in UPSIDE_DOWN else rendered
    return upright.astype(np.float32)
