"""Pictures of a simulated arm and its balls, as its driver's cameras take them, and what they show.

A moment is a pose, not a step of an episode: the arm is put somewhere on the way to its balls, or
about it, because a policy that is wrong about a ball comes to places where no expert goes.
"""

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np

from kairos_ros.lab.training.arm.demonstrations import begin, scatter
from kairos_ros.lab.training.camera.look import Look, dressed, random_clutter
from kairos_ros.lab.training.camera.pictures import DRESSED, Moment, Pictures, Size, joined
from kairos_ros.lab.training.camera.points import projected
from kairos_ros.lab.training.camera.vision import Vision
from kairos_ros.lab.world.driver import SimulatedDriver
from kairos_ros.lab.world.reach import state
from kairos_ros.lab.world.world import ArmWorld
from kairos_ros.robot.adapters.sim.intruder import Workcell
from kairos_ros.robot.adapters.sim.sim_cameras import MujocoCameras, jpeg, render_off_screen
from kairos_ros.robot.description.arm import ArmDescription, arm_called

MOMENTS = 16
"""Per episode, which is one place of the balls."""
CELL = Workcell(low=(-0.35, -0.5, 0.0), high=(0.42, 0.5, 0.6), floor_m=0.0)
"""Where things may lie about an SO-101."""


def works_at(at: np.ndarray) -> bool:
    """Whether float64 [3] is where an SO-101 stands or works."""
    return bool(at[0] > -0.12 and np.abs(at[1]) < 0.25)


class ArmPictures:
    """Renders worlds of one arm in one scene of its own, each picture in the look that is wanted.

    `robot.sim_cameras.render_off_screen` must have been called before MuJoCo was imported.
    """

    def __init__(self, arm: ArmDescription, cameras: Mapping[str, Size]) -> None:
        """cameras: name -> (height_px, width_px)."""
        self._world = ArmWorld(arm)
        self.scene = SimpleNamespace(unwrapped=self._world)
        self._cameras = MujocoCameras(self.scene, cameras)
        self._sizes = cameras

    def frames(
        self, world: ArmWorld, look: Look, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Camera -> uint8 [h, w, 3] of `world` as it is now; `rng` chooses light, colours, and
        what lies about in half of the looks that are not the demo's."""
        self._world.show(world.data.qpos, world.data.mocap_pos)
        with dressed(self.scene, None, look, rng):
            cluttered = look != "demo" and rng.random() < 0.5
            self._cameras.show(random_clutter(rng, CELL, works_at) if cluttered else ())
            return {name: self._cameras.frame(name).copy() for name in self._sizes}

    def jpegs(self, world: ArmWorld, look: Look, seed: int) -> dict[str, bytes]:
        """The same as JPEG, in the look of the episode that has this seed."""
        frames = self.frames(world, look, np.random.default_rng([seed, 17]))
        return {name: jpeg(frame, self._sizes[name]) for name, frame in frames.items()}

    def close(self) -> None:
        self._cameras.close()


def record_arm_pictures(scene: str, seeds: range, cameras: Mapping[str, Size]) -> Pictures:
    """`MOMENTS` of "ARM-reach" per seed."""
    render_off_screen()
    driver = SimulatedDriver(arm_called(scene.removesuffix("-reach")))
    arm, world = driver.world.arm, driver.world
    pictures = ArmPictures(arm, cameras)
    joints = len(arm.joints)
    moments: list[Moment] = []
    for seed in seeds:
        goal = begin(driver, seed)
        start = world.read().position.copy()
        rng = np.random.default_rng([seed, 13])
        for _ in range(MOMENTS):
            world.place(_pose(arm, start, goal, rng))
            look: Look = "shifted" if rng.random() < DRESSED else "demo"
            frames = pictures.frames(world, look, rng)
            told = state(world)
            balls = world.data.mocap_pos
            pixels = [
                projected(pictures.scene, name, balls, width / height)
                for name, (height, width) in cameras.items()
            ]
            shots = list(frames.values())
            moments.append(Moment(shots, told[:joints], told[joints:], pixels, seed))
    pictures.close()
    return joined(moments)


def _pose(
    arm: ArmDescription, start: np.ndarray, goal: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Joint positions float64 [n]: half of them are close to touching, the others anywhere."""
    share, about = (1.0, 0.3) if rng.random() < 0.5 else (rng.random(), 1.0)
    pose = start + share * (goal - start) + about * rng.normal(0.0, scatter(arm))
    for hand in arm.hands:
        pose[arm.joints.index(hand.gripper)] = rng.uniform(hand.closed, hand.opened)
    clipped: np.ndarray = np.clip(pose, *arm.limits.T)
    return clipped


_JOINTS = len(arm_called("so101").joints)
SO101_VISION = Vision(
    policy="so101_cameras",
    cameras={"front": (120, 160), "wrist": (120, 160)},  # as the driver renders them
    crops={"front": (26, 40, 90, 112), "wrist": (4, 4, 112, 136)},  # where balls can be seen
    own=tuple(range(_JOINTS)),
    places=tuple(range(_JOINTS, _JOINTS + 3)),
    points=("ball",),
    positions=(0, 1, 2),
    centre_m=(0.24, 0.0, 0.115),
    record=record_arm_pictures,
)
