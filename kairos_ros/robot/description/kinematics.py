"""Where the links of an arm are: forward kinematics of a chain of joints, from its URDF."""

from dataclasses import dataclass

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.description.urdf import UrdfJoint, read_urdf


@dataclass(frozen=True, slots=True)
class Chain:
    """The joints from one link to another.

    `q` is float64 [n] everywhere: one value in rad or m per entry of `joints`.
    """

    base: str
    path: tuple[UrdfJoint, ...]
    """From the base on, fixed joints included."""

    @classmethod
    def from_urdf(cls, text: str, base: str, tip: str) -> "Chain":
        """Raises ConfigError for a bad URDF, and where no chain leads from `base` to `tip`."""
        urdf = read_urdf(text)
        above = {joint.child: joint for joint in urdf.joints.values()}
        for link in (base, tip):
            if link not in urdf.links:
                raise ConfigError(
                    f"the robot description has no link {link!r}; it has {', '.join(urdf.links)}"
                )
        path: list[UrdfJoint] = []
        link = tip
        while link != base:
            if link not in above:
                raise ConfigError(f"no joints lead from link {base!r} to {tip!r}")
            path.append(above[link])
            link = above[link].parent
        return cls(base, tuple(reversed(path)))

    @property
    def joints(self) -> tuple[str, ...]:
        """Those that move, from the base on."""
        return tuple(joint.name for joint in self.path if joint.moves)

    @property
    def limits(self) -> np.ndarray:
        """float64 [n, 2], lowest and highest value; infinite where the URDF says nothing."""
        found = [joint.limits for joint in self.path if joint.moves]
        return np.array([(one.lower, one.upper) if one else (-np.inf, np.inf) for one in found])

    def tip(self, q: np.ndarray) -> np.ndarray:
        """The last link's frame in the base's, float64 [4, 4]."""
        return self._frames(q)[-1]

    def links(self, q: np.ndarray) -> dict[str, np.ndarray]:
        """Every link's frame in the base's, float64 [4, 4], the base's own included."""
        names = [self.base, *(joint.child for joint in self.path)]
        return dict(zip(names, self._frames(q), strict=True))

    def jacobian(self, q: np.ndarray) -> np.ndarray:
        """Motion of the tip per motion of each joint, float64 [6, n]: linear, then angular."""
        frames = self._frames(q)
        tip = frames[-1][:3, 3]
        columns = []
        for joint, frame in zip(self.path, frames[1:], strict=True):
            if not joint.moves:
                continue
            axis = frame[:3, :3] @ joint.axis
            if joint.kind == "prismatic":
                columns.append(np.concatenate([axis, np.zeros(3)]))
            else:
                columns.append(np.concatenate([_cross(axis, tip - frame[:3, 3]), axis]))
        return np.stack(columns, axis=1)

    def _frames(self, q: np.ndarray) -> list[np.ndarray]:
        values = iter(np.asarray(q, np.float64))
        if np.shape(q) != (len(self.joints),):
            raise ValueError(f"q has shape {np.shape(q)}, the chain {len(self.joints)} joints")
        frames = [np.eye(4)]
        for joint in self.path:
            frames.append(frames[-1] @ joint.transform(next(values) if joint.moves else 0.0))
        return frames


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As numpy's, for two vectors of three numbers: ten times as fast."""
    return np.array(
        (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    )
