"""Pictures of moments, with what they show: the eyes of a policy learn from them.

The simulator's poses label the pictures here and only here: a policy at work has pictures, the
instruction and what the body knows of itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from kairos_ros.host.process_pool import process_pool
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg

PICTURED_FROM = 500_000
"""First scene seed of the pictures, apart from the demonstrations' and below the held-out ones."""
BLOCK = 20
"""Episodes recorded at a time: what an interruption costs at most."""
DRESSED = 0.5
"""Share of the moments under random light and colours, half of these with clutter on the table."""

Size = tuple[int, int]
"""(height_px, width_px)."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Moments of one scene."""

    image: np.ndarray
    """uint8 [T, cameras, h, w, 3], after JPEG, as they arrive from a robot."""
    state: np.ndarray
    """float32 [T, own], what the body knows of itself (`Vision.own`)."""
    places: np.ndarray
    """float32 [T, places], what only cameras can tell (`Vision.places`)."""
    pixel: np.ndarray
    """float32 [T, cameras, points, 2]: where the points are in the picture, right and down, as
    `points.projected` says."""
    episode: np.ndarray
    """int64 [T], the scene's seed."""


Record = Callable[[str, range, Mapping[str, Size]], Pictures]
"""Scene, seeds, camera -> size, all of one size: pictures. Raises ConfigError where there is no
EGL."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One row of `Pictures`."""

    image: Sequence[np.ndarray]
    """uint8 [h, w, 3], per camera, as rendered."""
    state: np.ndarray
    places: np.ndarray
    pixel: Sequence[np.ndarray]
    """float32 [points, 2], per camera."""
    episode: int


def joined(moments: Sequence[Moment]) -> Pictures:
    return Pictures(
        np.stack([np.stack([_through_jpeg(shot) for shot in one.image]) for one in moments]),
        np.stack([one.state for one in moments]),
        np.stack([one.places for one in moments]),
        np.stack([np.stack(one.pixel) for one in moments]),
        np.array([one.episode for one in moments]),
    )


def _through_jpeg(frame: np.ndarray) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(BytesIO(jpeg(frame, frame.shape[:2]))))


def _record_folder(
    record: Record, scene: str, seeds: range, cameras: Mapping[str, Size], folder: Path
) -> None:
    made = record(scene, seeds, cameras)
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for name in Pictures.__slots__:
        np.save(partial / f"{name}.npy", getattr(made, name))
    partial.rename(folder)


def collect_pictures(
    scenes: Iterable[str],
    episodes: int,
    seed: int,
    cameras: Mapping[str, Size],
    record: Record,
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
                pool.submit(
                    _record_folder, record, scene, seeds, cameras, blocks[scene, seeds]
                ): scene
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
