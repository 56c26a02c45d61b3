"""Renders the demo's cells with their true answers: what the embedded judge learns from.

Arms driven by scripted experts under disturbances and by the trained policy; objects knocked away;
people and hands drawn in. The simulator's state labels the pictures here and only here: a judge at
work sees pictures and words.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.training.camera.look import Look, dressed, passer_by, random_clutter
from kairos_ros.lab.training.camera.points import projected, task_points
from kairos_ros.lab.training.demonstrations import MAX_STEPS, disturbances
from kairos_ros.robot.adapters.sim.intruder import METAWORLD_CELL, Body, random_intruder
from kairos_ros.robot.adapters.sim.metaworld_scenes import (
    LOSABLE,
    SCENES,
    expert,
    knock_object,
    make_scene,
    object_lost,
    policy_state,
    reset_scene,
)
from kairos_ros.robot.adapters.sim.sim import metaworld_cameras
from kairos_ros.robot.adapters.sim.sim_cameras import MujocoCameras, jpeg, render_off_screen
from kairos_ros.vlm.questions import DONE, FAILED, ONGOING

CAMERA = "corner3"
"""Sees the whole table and who stands at it."""
TRAIN_FROM, CALIBRATE_FROM, TEST_FROM, SHIFTED_FROM = 600_000, 800_000, 1_500_000, 1_600_000
"""First scene seeds of each set; nothing in this package trains on those from 1,000,000 up."""
STATES = (ONGOING, DONE, FAILED)
UNCLEAR = -1
"""State label of a picture whose object is just at the edge of the arm's reach: either answer is
right, so that it is left out."""

GAPS = {ONGOING: 36.0, DONE: 16.0, FAILED: 9.0}
"""Mean actions between two pictures in each state; the rarer, the denser."""
AFTER_SUCCESS, AFTER_LOSS = 40, 40
"""Actions that an episode goes on for."""
KNOCKED = 0.65
"""Share of episodes in which the object is knocked."""
KNOCK_AGAIN = 15
"""Actions until an object that stayed within reach is knocked once more."""
VISIBLE = 0.004
"""Least share of the picture that an intruder must cover to count as visible."""
NOTICEABLE = 24
"""Change of a pixel, of 255, that counts as covered."""
CHUNK = 10
"""Actions executed of every chunk of the policy."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Labelled pictures of one scene."""

    image: np.ndarray
    """uint8 [T, px, px, 3]."""
    state: np.ndarray
    """int8 [T], index into STATES or UNCLEAR."""
    unsafe: np.ndarray
    """bool [T]: a visible person or hand is in the cell."""
    covered: np.ndarray
    """float32 [T]: share of the picture that the intruder covers; 0 without one."""
    seed: np.ndarray
    """int64 [T], of the scene; pictures of one episode share it."""
    place: np.ndarray
    """float32 [T, 3, 3], m: where hand, object and goal are in the cell."""
    pixel: np.ndarray
    """float32 [T, 3, 2]: where they are in the picture, as `judge_points.projected` says."""


Row = tuple[np.ndarray, int, bool, float, int, np.ndarray, np.ndarray]
"""One picture's entries of Frames, in their order."""

Act = Callable[[np.ndarray], np.ndarray]
"""Meta-World's observation -> action float [4]; made anew for every episode."""


def record_frames(
    scene: str,
    seeds: range,
    *,
    px: int,
    look: Look | None = None,
    policy: Path | None = None,
    per_moment: int = 2,
) -> Frames:
    """Pictures of one episode per seed, `px` pixels wide and high.

    per_moment: 2 for the same moment without and with an intruder; 1 for one of the two, so that
    moments, which are what a task's state is about, do not count twice.

    look: None mixes "demo" and "varied", as training does. policy: drives every second episode;
    without it, experts drive all.
    """
    if scene not in SCENES:
        raise ConfigError(f"scene {scene!r} is unknown; choose from {', '.join(SCENES)}")
    render_off_screen()
    warnings.filterwarnings("ignore", message="Constant")  # the experts clip on purpose
    env = make_scene(scene)
    reset_scene(env, seeds[0])
    camera = metaworld_cameras(env, {CAMERA: (px, px)})
    drive = _policy_driver(scene, policy) if policy else None
    rows = [
        row
        for seed in seeds
        for row in _episode(env, camera, scene, seed, look, drive if seed % 2 else None, per_moment)
    ]
    camera.close()
    columns = zip(*rows, strict=True)
    kinds = (np.uint8, np.int8, np.bool_, np.float32, np.int64, np.float32, np.float32)
    return Frames(*(np.array(c, kind) for c, kind in zip(columns, kinds, strict=True)))


def task_state(env: Any, scene: str, success: bool) -> int:
    """The true state as an index into STATES, or UNCLEAR.

    Done as Meta-World sees it. Failed when the loose object is where the hand cannot get it back.
    """
    if success:
        return STATES.index(DONE)
    lost = object_lost(env, scene)
    return UNCLEAR if lost is None else STATES.index(FAILED if lost else ONGOING)


def _episode(
    env: Any,
    camera: MujocoCameras,
    scene: str,
    seed: int,
    look: Look | None,
    drive: Callable[[int], Act] | None,
    per_moment: int,
) -> Iterator[Row]:
    rng = np.random.default_rng([seed, 11])
    act = drive(seed) if drive else _expert_driver(scene)
    noise, _ = disturbances(rng)
    knock_at = rng.integers(1, 70) if scene in LOSABLE and rng.random() < KNOCKED else MAX_STEPS
    obs = reset_scene(env, seed)
    success, ends = False, MAX_STEPS
    due = rng.exponential(GAPS[ONGOING])
    before = ONGOING
    for step in range(MAX_STEPS):
        state = task_state(env, scene, success)
        name = STATES[state]
        if name != before and state != UNCLEAR:
            due, before = step + rng.exponential(GAPS[name]), name
            ends = min(ends, step + {DONE: AFTER_SUCCESS, FAILED: AFTER_LOSS}.get(name, MAX_STEPS))
        if step >= due and state != UNCLEAR:
            due = step + rng.exponential(GAPS[name])
            place = task_points(obs)
            shots = _pictures(env, camera, look, rng, per_moment, place)
            for image, unsafe, covered, pixel in shots:
                yield image, state, unsafe, covered, seed, place, pixel
        if step >= ends:
            return
        if (
            step >= knock_at
            and name == ONGOING
            and not success
            and (step - knock_at) % KNOCK_AGAIN == 0
        ):
            knock_object(env, random_knock(rng))
        action = np.clip(act(obs), -1, 1)
        if not drive:
            action = np.clip(action + np.nan_to_num(noise[step]), -1, 1)
        obs, _, _, _, info = env.step(action.astype(np.float32))
        success = bool(info["success"])


def random_knock(rng: np.random.Generator) -> np.ndarray:
    """A velocity float64 [3] in m/s that mostly sends an object out of the arm's reach."""
    angle = rng.uniform(0, 2 * np.pi)
    speed = rng.uniform(2.5, 5.5)
    return np.array([speed * np.cos(angle), speed * np.sin(angle), rng.uniform(0.3, 3.0)])


def _pictures(
    env: Any,
    camera: MujocoCameras,
    look: Look | None,
    rng: np.random.Generator,
    count: int,
    place: np.ndarray,
) -> Iterator[tuple[np.ndarray, bool, float, np.ndarray]]:
    """One moment without an intruder and with one that can be seen; of these, `count` by chance.

    With each picture: is somebody in it, the share that the intruder covers, where `place` is.
    """
    look = look or ("demo" if rng.random() < 0.5 else "varied")
    with dressed(env, CAMERA, look, rng):
        things = random_clutter(rng, METAWORLD_CELL) if rng.random() < 0.5 else ()
        if rng.random() < 0.15:
            things = (*things, *passer_by(rng, METAWORLD_CELL))
        camera.show(things)
        empty = camera.frame(CAMERA).copy()
        pixel = projected(env, CAMERA, place)
        wanted = rng.permutation(2)[:count]
        if 0 in wanted:
            yield _compressed(empty), False, 0.0, pixel
        if 1 in wanted:
            yield *_with_intruder(camera, things, empty, rng), pixel


def _with_intruder(
    camera: MujocoCameras, things: Body, empty: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, bool, float]:
    while True:
        camera.show((*things, *random_intruder(rng, METAWORLD_CELL)))
        frame = camera.frame(CAMERA)
        change = np.abs(frame.astype(np.int16) - empty).max(-1)
        covered = float((change > NOTICEABLE).mean())
        if covered >= VISIBLE:
            return _compressed(frame), True, covered


def _compressed(frame: np.ndarray) -> np.ndarray:
    """The picture as it arrives from a robot: through JPEG."""
    from PIL import Image

    return np.asarray(Image.open(BytesIO(jpeg(frame, frame.shape[:2]))))


def _expert_driver(scene: str) -> Act:
    act: Act = expert(scene).get_action
    return act


def _policy_driver(scene: str, folder: Path) -> Callable[[int], Act]:
    """The trained policy, a new chunk every CHUNK actions."""
    from kairos_ros.lab.training.rollout import PolicyUnderTest

    policy = PolicyUnderTest(folder)

    def start(seed: int) -> Act:
        waiting: list[np.ndarray] = []
        rounds = 0

        def act(obs: np.ndarray) -> np.ndarray:
            nonlocal rounds
            if not waiting:
                chunk = policy(policy_state(obs)[None], SCENES[scene], [seed * 1000 + rounds])
                waiting.extend(chunk.actions[0, :CHUNK])
                rounds += 1
            return waiting.pop(0)

        return act

    return start


def collect_frames(
    episodes: Mapping[str, int],
    *,
    first_seed: int,
    px: int,
    look: Look | None,
    policy: Path | None,
    per_moment: int,
    folder: Path,
    report: Callable[[str], None],
) -> dict[str, Frames]:
    """`record_frames` per scene, kept in `folder`; what it already holds is not rendered again."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = {}
    for done, (scene, count) in enumerate(episodes.items(), 1):
        path = (
            folder / f"{scene}-{count}x-from{first_seed}-{px}px-{look or 'mixed'}-{per_moment}.npz"
        )
        if not path.exists():
            seeds = range(first_seed, first_seed + count)
            made = record_frames(
                scene, seeds, px=px, look=look, policy=policy, per_moment=per_moment
            )
            partial = path.with_suffix(".partial.npz")
            np.savez(partial, **{name: getattr(made, name) for name in Frames.__slots__})
            partial.replace(path)
            states = np.bincount(made.state + 1, minlength=4)[1:]
            counts = ", ".join(f"{n} {s}" for n, s in zip(states, STATES, strict=True))
            report(
                f"pictures: {scene} ({done}/{len(episodes)}), {len(made.state)} from {count}"
                f" episodes ({counts}; {made.unsafe.mean():.0%} with an intruder)"
            )
        with np.load(path, allow_pickle=False) as data:
            frames[scene] = Frames(*(data[name] for name in Frames.__slots__))
    return frames
