"""Pictures of disturbed demonstrations, with what they show: the eyes of a policy learn from them.

The simulator's poses label the pictures here and only here: a policy at work has pictures, the
instruction and what the arm knows of itself.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from kairos_ros.host.process_pool import process_pool
from kairos_ros.lab.training.camera.look import Look, dressed, random_clutter
from kairos_ros.lab.training.camera.points import projected
from kairos_ros.lab.training.demonstrations import record_episode
from kairos_ros.robot.adapters.sim.intruder import METAWORLD_CELL
from kairos_ros.robot.adapters.sim.metaworld_scenes import (
    POSITIONS,
    hand_state,
    make_scene,
    places,
    reset_scene,
)
from kairos_ros.robot.adapters.sim.sim import metaworld_cameras
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg, render_off_screen

PICTURED_FROM = 500_000
"""First scene seed of the pictures, apart from the demonstrations' and below the held-out ones."""
EVERY = 7
"""Mean steps between two moments that are pictured; the first moment of an episode always is."""
BLOCK = 20
"""Episodes recorded at a time: what an interruption costs at most."""
DRESSED = 0.5
"""Share of the moments under random light and colours, half of these with clutter on the table."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Moments of one scene."""

    image: np.ndarray
    """uint8 [T, cameras, px, px, 3], after JPEG, as they arrive from a robot."""
    state: np.ndarray
    """float32 [T, 8], `hand_state`."""
    places: np.ndarray
    """float32 [T, 10], `places`."""
    pixel: np.ndarray
    """float32 [T, cameras, 2, 2]: where object and goal are in the picture, right and down, as
    `points.projected` says."""
    episode: np.ndarray
    """int64 [T], the scene's seed."""


def record_pictures(scene: str, seeds: range, cameras: Mapping[str, tuple[int, int]]) -> Pictures:
    """Of one demonstration per scene seed; those count, too, in which the expert fails.

    `cameras`: key -> (height_px, width_px), all of one size. Raises ConfigError where there is no
    EGL.
    """
    render_off_screen()
    warnings.filterwarnings("ignore", message="Constant")  # the experts clip on purpose
    env = make_scene(scene)
    reset_scene(env, seeds[0])
    views = metaworld_cameras(env, cameras)
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]] = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 13])
        moments = rng.random(500) < 1 / EVERY
        moments[0] = True
        steps = iter(moments)

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
                shots = [_through_jpeg(views.frame(key)) for key in cameras]
            there = places(obs)
            points = there[POSITIONS].reshape(2, 3)
            pixels = np.stack([projected(env, key, points) for key in cameras])
            rows.append((np.stack(shots), hand_state(obs), there, pixels, number))

        record_episode(env, scene, seed, watch)
    views.close()
    image, state, where, pixel, number = zip(*rows, strict=True)
    return Pictures(
        np.stack(image), np.stack(state), np.stack(where), np.stack(pixel), np.array(number)
    )


def _through_jpeg(frame: np.ndarray) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(BytesIO(jpeg(frame, frame.shape[:2]))))


def _record_folder(
    scene: str, seeds: range, cameras: Mapping[str, tuple[int, int]], folder: Path
) -> None:
    made = record_pictures(scene, seeds, cameras)
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for name in Pictures.__slots__:
        np.save(partial / f"{name}.npy", getattr(made, name))
    partial.rename(folder)


def collect_pictures(
    scenes: Iterable[str],
    episodes: int,
    seed: int,
    cameras: Mapping[str, tuple[int, int]],
    folder: Path,
    processes: int,
    report: Callable[[str], None],
) -> dict[str, list[Pictures]]:
    """Blocks of pictures per scene, recorded in parallel, their images memory-mapped; what `folder`
    already holds is not redone."""
    views = "+".join(f"{key}-{height}x{width}" for key, (height, width) in cameras.items())
    first = PICTURED_FROM + (seed * 10_007) % 250_000
    scenes = tuple(scenes)
    blocks = {
        (scene, seeds): folder / views / f"{scene}-{seeds.start}-{len(seeds)}x"
        for seeds in (
            range(first + at, first + min(at + BLOCK, episodes)) for at in range(0, episodes, BLOCK)
        )
        for scene in scenes
    }
    missing = [block for block, path in blocks.items() if not path.exists()]
    if missing:
        with process_pool(processes) as pool:
            jobs = {
                pool.submit(_record_folder, scene, seeds, cameras, blocks[scene, seeds]): scene
                for scene, seeds in missing
            }
            try:
                for done, job in enumerate(as_completed(jobs), 1):
                    job.result()
                    report(f"pictures: {BLOCK} episodes of {jobs[job]} ({done}/{len(missing)})")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return {
        scene: [_load(path) for (one, _), path in blocks.items() if one == scene]
        for scene in scenes
    }


def _load(folder: Path) -> Pictures:
    arrays = (np.load(folder / f"{n}.npy", mmap_mode="r") for n in Pictures.__slots__)
    return Pictures(*arrays)
