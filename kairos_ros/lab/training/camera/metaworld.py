"""What a policy of Meta-World's tasks sees, and pictures of disturbed demonstrations."""

import warnings
from collections.abc import Iterator, Mapping

import numpy as np

from kairos_ros.lab.training.camera.look import Look, dressed, random_clutter
from kairos_ros.lab.training.camera.pictures import DRESSED, Moment, Pictures, Size, joined
from kairos_ros.lab.training.camera.points import projected
from kairos_ros.lab.training.camera.vision import Vision
from kairos_ros.lab.training.demonstrations import record_episode
from kairos_ros.robot.adapters.sim.intruder import METAWORLD_CELL
from kairos_ros.robot.adapters.sim.metaworld_scenes import (
    HAND_ENTRIES,
    PLACES_ENTRIES,
    POSITIONS,
    hand_state,
    make_scene,
    places,
    reset_scene,
)
from kairos_ros.robot.adapters.sim.sim import metaworld_cameras
from kairos_ros.robot.adapters.sim.sim_cameras import render_off_screen

EVERY = 7
"""Mean steps between two moments that are pictured; the first moment of an episode always is."""


def record_pictures(scene: str, seeds: range, cameras: Mapping[str, Size]) -> Pictures:
    """Of one demonstration per scene seed; those count, too, in which the expert fails."""
    render_off_screen()
    warnings.filterwarnings("ignore", message="Constant")  # the experts clip on purpose
    env = make_scene(scene)
    reset_scene(env, seeds[0])
    views = metaworld_cameras(env, cameras)
    moments: list[Moment] = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 13])
        chosen = rng.random(500) < 1 / EVERY
        chosen[0] = True
        steps = iter(chosen)

        def watch(
            obs: np.ndarray,
            number: int = seed,
            rng: np.random.Generator = rng,
            steps: Iterator[np.bool_] = steps,
        ) -> None:
            if not next(steps):
                return
            look: Look = "shifted" if rng.random() < DRESSED else "demo"
            cluttered = look == "shifted" and rng.random() < 0.5
            views.show(random_clutter(rng, METAWORLD_CELL) if cluttered else ())
            with dressed(env, None, look, rng):
                shots = [views.frame(key).copy() for key in cameras]
            there = places(obs)
            points = there[POSITIONS].reshape(2, 3)
            pixels = [projected(env, key, points) for key in cameras]
            moments.append(Moment(shots, hand_state(obs), there, pixels, number))

        record_episode(env, scene, seed, watch)
    views.close()
    return joined(moments)


METAWORLD_VISION = Vision(
    policy="metaworld_cameras",
    # Two views, so that a goal in the air has a place in space.
    cameras={"corner4": (128, 128), "topview": (128, 128)},
    crops={"corner4": (12, 26, 96, 96), "topview": (4, 16, 96, 96)},  # table, hand and objects
    own=tuple(HAND_ENTRIES),
    places=tuple(PLACES_ENTRIES),
    points=("object", "goal"),
    positions=tuple(POSITIONS),
    centre_m=(0.0, 0.65, 0.1),
    record=record_pictures,
)
