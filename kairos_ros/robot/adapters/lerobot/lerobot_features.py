"""LeRobot's named features as the vectors of a policy, in the robot's own order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Features:
    """What a robot says that it senses and accepts."""

    state: tuple[str, ...]
    """Numbers it observes, such as `shoulder_pan.pos`."""
    action: tuple[str, ...]
    cameras: Mapping[str, tuple[int, int]]
    """Colour cameras -> (height_px, width_px)."""

    def vector(self, observation: Mapping[str, Any]) -> np.ndarray:
        """float32 [len(state)]. Raises KeyError, TypeError or ValueError for what is no such
        observation, or not finite."""
        state = np.array([float(observation[name]) for name in self.state], np.float32)
        if not np.isfinite(state).all():
            first = int(np.argmin(np.isfinite(state)))
            raise ValueError(f"{self.state[first]} is {state[first]}")
        return state

    def check_pictures(self, observation: Mapping[str, Any]) -> None:
        """Raises KeyError or ValueError where a camera's picture is missing or none."""
        for camera in self.cameras:
            picture = np.asarray(observation[camera])
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
                raise ValueError(
                    f"camera {camera} gives {picture.dtype} {picture.shape}, no uint8 [h, w, 3]"
                )

    def named(self, action: np.ndarray) -> dict[str, float]:
        """`action`, float32 [len(action)], as the driver takes it."""
        return dict(zip(self.action, map(float, action), strict=True))

    @property
    def measured_by(self) -> tuple[int, ...]:
        """State entry that tells where each action dimension is; -1 for a velocity."""
        return tuple(
            self.state.index(name) if name in self.state and not is_velocity(name) else -1
            for name in self.action
        )


def is_velocity(name: str) -> bool:
    """Whether a feature is one that must be 0 for the robot to stand still."""
    return name.endswith(".vel")


def read_features(observed: Mapping[str, Any], accepted: Mapping[str, Any]) -> Features:
    """LeRobot's `observation_features` and `action_features`: name -> `float` or a shape.

    Depth images are left out. Raises ConfigError for anything else that is no number and no
    picture, since no policy here could be given it.
    """
    state, cameras = [], {}
    for name, kind in observed.items():
        match kind:
            case (int() as height, int() as width, 3):
                cameras[name] = (height, width)
            case (_, _, 1):
                pass
            case type():
                state.append(name)
            case _:
                raise ConfigError(
                    f"the robot observes {name!r} as {kind!r}; only numbers and pictures (height, "
                    "width, 3) can be given to a policy"
                )
    for name, kind in accepted.items():
        if not isinstance(kind, type):
            raise ConfigError(f"the robot accepts {name!r} as {kind!r}; actions must be numbers")
    if not state or not accepted:
        raise ConfigError(
            f"the robot has {len(state)} numbers to observe and {len(accepted)} to be told; a "
            "policy needs both"
        )
    return Features(tuple(state), tuple(accepted), cameras)
