"""What a policy of a simulated arm reads: its whole state, or joints and pictures."""

from collections.abc import Sequence

import numpy as np

from kairos_ros.lab.training.arm.pictures import ArmPictures
from kairos_ros.lab.training.camera.look import Look
from kairos_ros.lab.training.camera.pictures import Size
from kairos_ros.lab.world.reach import state
from kairos_ros.lab.world.world import ArmWorld
from kairos_ros.robot.description.arm import ArmDescription


class Senses:
    """Of all simulated arms that a policy moves."""

    def __init__(self, arm: ArmDescription, cameras: dict[str, Size], look: Look = "demo") -> None:
        """cameras: name -> (height_px, width_px); none: the state tells where the balls are.

        With cameras, `robot.sim_cameras.render_off_screen` must have been called before MuJoCo was
        imported.
        """
        self.arm = arm
        self._look = look
        self._pictures = ArmPictures(arm, cameras) if cameras else None

    def observe(
        self, worlds: Sequence[tuple[ArmWorld, int]]
    ) -> tuple[np.ndarray, list[dict[str, bytes]]]:
        """States float32 [B, S] and, with cameras, JPEG per camera of these worlds, each in the
        look of the episode that has its seed."""
        states = np.stack([state(world) for world, _ in worlds])
        if self._pictures is None:
            return states, []
        pictures = [self._pictures.jpegs(world, self._look, seed) for world, seed in worlds]
        return states[:, : len(self.arm.joints)], pictures

    def close(self) -> None:
        if self._pictures is not None:
            self._pictures.close()
