"""How a rendered cell may look: the demo's own, varied a little, or shifted beyond training."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, cast

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.adapters.sim.intruder import (
    METAWORLD_CELL,
    SKIN,
    Body,
    Solid,
    Workcell,
    capsule,
    ellipsoid,
)
from kairos_ros.robot.adapters.sim.sim import SimAdapter

Look = Literal["demo", "varied", "shifted"]

SPREAD = {"demo": 0.0, "varied": 0.25, "shifted": 1.0}
"""How far lights, colours and the camera may stray, as a share of the widest."""

LIGHT = 0.5
"""Widest change of a light, as a factor."""
TINT = 0.35
"""Widest change of the table's and walls' colour, as a factor per channel."""
CAMERA_M, CAMERA_RAD = 0.04, 0.05
"""Widest displacement and turn of the camera, standard deviations."""


def look_called(name: str) -> Look:
    """Raises ConfigError for another one."""
    if name not in SPREAD:
        raise ConfigError(f"look {name!r} is unknown; choose from {', '.join(SPREAD)}")
    return cast(Look, name)


@contextmanager
def dressed(env: Any, camera: str | None, look: Look, rng: np.random.Generator) -> Iterator[None]:
    """The scene of `env` under another light, in other colours and, where a camera is named, from
    another place.

    Everything is put back at the end. Only what is rendered changes; the physics does not.
    """
    import mujoco

    model, data = env.unwrapped.model, env.unwrapped.data
    spread = SPREAD[look]
    changed = {
        "light_diffuse": model.light_diffuse,
        "headlight": model.vis.headlight.ambient,
        "rgba": model.mat_rgba if model.nmat else model.geom_rgba,
        "cam_pos": model.cam_pos,
        "cam_quat": model.cam_quat,
    }
    before = {name: values.copy() for name, values in changed.items()}
    try:
        lights = 1 + spread * LIGHT * rng.uniform(-1, 1, (model.nlight, 1))
        model.light_diffuse[:] *= lights
        model.vis.headlight.ambient[:] *= 1 + spread * LIGHT * rng.uniform(-1, 1)
        rgba = changed["rgba"]
        rgba[:, :3] *= 1 + spread * TINT * rng.uniform(-1, 1, (len(rgba), 3))
        if camera is not None:
            number = model.camera(camera).id
            model.cam_pos[number] += spread * CAMERA_M * rng.normal(size=3)
            turn = 0.5 * spread * CAMERA_RAD * rng.normal(size=3)
            model.cam_quat[number] = _multiply(model.cam_quat[number], np.array([1.0, *turn]))
        mujoco.mj_camlight(model, data)  # pictures are taken from where `data` says
        yield
    finally:
        for name, values in changed.items():
            values[:] = before[name]
        mujoco.mj_camlight(model, data)


class SceneRandomizer:
    """Dresses the scenes of simulated arms, each for a whole episode and by its seed, and puts
    things on every second table."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._worn: dict[int, ExitStack] = {}

    def __call__(self, arm: SimAdapter, seed: int) -> None:
        """After `arm` was reset. Nothing is done where the look is the demo's."""
        if self._look == "demo":
            return
        worn = self._worn.setdefault(id(arm), ExitStack())
        worn.close()
        rng = np.random.default_rng([seed, 17])
        worn.enter_context(dressed(arm.environment, None, self._look, rng))
        arm.show(random_clutter(rng, METAWORLD_CELL) if rng.random() < 0.5 else ())


def metaworld_works_at(at: np.ndarray) -> bool:
    """Whether float64 [3] is in the middle of Meta-World's table, where the arm works."""
    return bool(np.abs(at[0]) <= 0.38 and at[1] <= 0.92)


def random_clutter(
    rng: np.random.Generator,
    cell: Workcell,
    works_at: Callable[[np.ndarray], bool] = metaworld_works_at,
) -> Body:
    """Up to three things that lie in the cell and are nobody: boxes, balls, mugs, tools.

    Some have the colour of skin, so that colour alone does not give a hand away. Where `works_at`
    says yes to a place, float64 [3] in m, nothing lies.
    """
    spots = (_spot(rng, cell, works_at) for _ in range(rng.integers(0, 4)))
    return tuple(part for at in spots for part in _thing(rng, at))


def passer_by(rng: np.random.Generator, cell: Workcell) -> Body:
    """Somebody behind the cell, too far away to reach in."""
    from kairos_ros.robot.adapters.sim.intruder import person, random_look

    feet = np.array([rng.uniform(-1.2, 1.2), cell.high[1] + rng.uniform(1.1, 2.2), cell.floor_m])
    angle = rng.uniform(0, 2 * np.pi)
    facing = np.array([np.cos(angle), np.sin(angle)])
    return person(feet, facing, random_look(rng), height_m=rng.uniform(1.5, 1.95))


def _spot(
    rng: np.random.Generator, cell: Workcell, works_at: Callable[[np.ndarray], bool]
) -> np.ndarray:
    """A place on the table where the arm does not work."""
    while True:
        at: np.ndarray = rng.uniform([*cell.low[:2], 0.0], [*cell.high[:2], 0.0])
        if not works_at(at):
            return at


def _thing(rng: np.random.Generator, at: np.ndarray) -> Body:
    skin = np.array(SKIN[rng.integers(len(SKIN))])
    rgb = skin if rng.random() < 0.3 else rng.uniform(0.05, 0.95, 3)
    rgba = (float(rgb[0]), float(rgb[1]), float(rgb[2]), 1.0)
    up = np.array([0.0, 0.0, 1.0])
    angle = rng.uniform(0, np.pi)
    along = np.array([np.cos(angle), np.sin(angle), 0.0])
    turn = np.stack([along, np.cross(up, along), up], axis=1)
    kind = rng.integers(5)
    if kind == 0:
        size = rng.uniform(0.025, 0.08, 3)
        return (Solid("box", at + size[2] * up, size, turn, rgba),)
    if kind == 1:
        radius, height = rng.uniform(0.025, 0.05), rng.uniform(0.03, 0.08)
        size = np.array([radius, radius, height])
        return (Solid("cylinder", at + height * up, size, turn, rgba),)
    if kind == 2:
        radii = rng.uniform(0.025, 0.07, 3)
        return (ellipsoid(at + radii[0] * up, radii, along, rgba),)
    if kind == 3:
        length, radius = rng.uniform(0.08, 0.16), rng.uniform(0.01, 0.02)
        lifted = at + radius * up
        handle = capsule(lifted, lifted + length * along, radius, rgba)
        head = ellipsoid(lifted + length * along, np.full(3, 2 * radius), along, rgba)
        return (handle, head)
    size = np.array([rng.uniform(0.1, 0.2), 0.012, 0.006])
    return (Solid("box", at + size[2] * up, size, turn, rgba),)


def _multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Product of two quaternions (w, x, y, z), normalised."""
    w, v = a[0] * b[0] - a[1:] @ b[1:], a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])
    product = np.array([w, *v])
    unit: np.ndarray = product / np.linalg.norm(product)
    return unit
