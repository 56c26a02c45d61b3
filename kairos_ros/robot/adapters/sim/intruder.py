"""Bodies that are seen but not felt: people, hands and things drawn into a simulated cell.

They are shapes in metres in the cell's frame, added to what a camera renders; the physics knows
nothing of them. Building them imports no simulator.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Rgba = tuple[float, float, float, float]
Point = np.ndarray
"""float64 [3], metres."""


@dataclass(frozen=True, slots=True)
class Solid:
    """One solid of a body."""

    kind: Literal["capsule", "ellipsoid", "box", "cylinder"]
    at: Point
    """The centre."""
    size: Point
    """float64 [3]: half extents; of capsules and cylinders (radius, radius, half length)."""
    turn: np.ndarray
    """float64 [3, 3]: rotation; capsules and cylinders lie along its third column."""
    rgba: Rgba


Body = tuple[Solid, ...]


@dataclass(frozen=True, slots=True)
class Workcell:
    """The box that a robot works in, and the floor under it, metres."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    floor_m: float

    def holds(self, point: Point) -> bool:
        return bool((point >= self.low).all() and (point <= self.high).all())


METAWORLD_CELL = Workcell(low=(-0.7, 0.2, -0.03), high=(0.7, 1.0, 1.0), floor_m=-0.913)
"""The table of Meta-World's scenes; the arm stands at the origin, the cameras look from the side
of negative y."""


@dataclass(frozen=True, slots=True)
class PersonColours:
    """Colours of a person."""

    skin: Rgba
    hands: Rgba
    """As the skin, or gloves."""
    sleeve: Rgba
    trousers: Rgba
    hair: Rgba


SKIN = ((0.95, 0.80, 0.69), (0.87, 0.67, 0.53), (0.71, 0.49, 0.36), (0.48, 0.31, 0.22))
GLOVES = ((0.92, 0.92, 0.94), (0.15, 0.35, 0.75), (0.12, 0.12, 0.13), (0.95, 0.55, 0.10))


def random_look(rng: np.random.Generator) -> PersonColours:
    """Any skin tone, clothes of any colour, one time in four gloves."""
    skin = _near(rng, SKIN)
    hands = _near(rng, GLOVES) if rng.random() < 0.25 else skin
    cloth = rng.uniform(0.05, 0.95, (2, 3))
    return PersonColours(
        skin, hands, _rgba(cloth[0]), _rgba(cloth[1]), _rgba(rng.uniform(0.02, 0.35, 3))
    )


def capsule(start: Point, end: Point, radius_m: float, rgba: Rgba) -> Solid:
    """A rod with round ends from `start` to `end`."""
    axis = end - start
    length = float(np.linalg.norm(axis))
    size = np.array([radius_m, radius_m, length / 2])
    return Solid("capsule", (start + end) / 2, size, _along(axis), rgba)


def ellipsoid(at: Point, radii: Point, along: Point, rgba: Rgba) -> Solid:
    """`radii` of the two short axes and, last, of the one that points `along`."""
    return Solid("ellipsoid", at, radii, _along(along), rgba)


def hand(wrist: Point, towards: Point, spread_m: float, look: PersonColours) -> Body:
    """A palm with four fingers and a thumb; `towards` is the direction of the fingers."""
    turn = _along(towards)
    ahead, side = turn[:, 2], turn[:, 0]
    palm = ellipsoid(wrist + 0.05 * ahead, np.array([0.042, 0.02, 0.055]), ahead, look.hands)
    fingers = []
    for place in (-1.0, -0.35, 0.35, 1.0):
        knuckle = wrist + 0.085 * ahead + 0.026 * place * side
        tip = knuckle + (0.075 - 0.012 * abs(place)) * ahead + spread_m * place * side
        fingers.append(capsule(knuckle, tip, 0.0095, look.hands))
    thumb = wrist + 0.035 * ahead + 0.035 * side
    fingers.append(capsule(thumb, thumb + 0.04 * ahead + 0.04 * side, 0.011, look.hands))
    return (palm, *fingers)


def forearm(
    wrist: Point, elbow: Point, look: PersonColours, *, bare: bool, spread_m: float = 0.01
) -> Body:
    """A hand on a forearm that comes from `elbow`; `bare` without a sleeve."""
    towards = wrist - elbow
    arm = look.skin if bare else look.sleeve
    cuff = elbow + 0.75 * towards
    parts = [capsule(elbow, cuff, 0.046, arm), capsule(cuff, wrist, 0.034, look.skin)]
    return (*parts, *hand(wrist, towards, spread_m, look))


def person(
    feet: Point,
    facing: Point,
    look: PersonColours,
    *,
    height_m: float = 1.75,
    lean: float = 0.0,
    reach: Point | None = None,
    bare: bool = False,
) -> Body:
    """Somebody who stands at `feet`, turned to the horizontal direction `facing`.

    `lean` in radians bends the upper body forward. `reach` is where one hand goes, as far as the
    arm is long; without it both arms hang.
    """
    up = np.array([0.0, 0.0, 1.0])
    ahead = np.array([facing[0], facing[1], 0.0]) / np.hypot(facing[0], facing[1])
    side = np.cross(up, ahead)
    s = height_m / 1.75
    hip = feet + 0.92 * s * up
    spine = np.cos(lean) * up + np.sin(lean) * ahead
    chest, neck = hip + 0.36 * s * spine, hip + 0.55 * s * spine
    parts = [
        capsule(
            feet + 0.05 * up + 0.1 * s * sign * side,
            hip + 0.1 * s * sign * side,
            0.085 * s,
            look.trousers,
        )
        for sign in (-1, 1)
    ]
    parts += [
        capsule(hip, chest, 0.16 * s, look.sleeve),
        capsule(chest - 0.1 * s * side, chest + 0.1 * s * side, 0.13 * s, look.sleeve),
        capsule(neck, neck + 0.08 * s * spine, 0.055 * s, look.skin),
    ]
    head = neck + 0.2 * s * spine
    parts.append(ellipsoid(head, np.array([0.08, 0.095, 0.12]) * s, spine, look.skin))
    crown = head + 0.045 * s * spine - 0.02 * s * ahead
    parts.append(ellipsoid(crown, np.array([0.085, 0.095, 0.09]) * s, spine, look.hair))
    for sign in (-1, 1):
        shoulder = neck - 0.06 * s * spine + 0.2 * s * sign * side
        if reach is None or sign < 0:
            elbow = shoulder - 0.29 * s * up + 0.04 * sign * side
            wrist = elbow - 0.2 * s * up + 0.12 * s * ahead
        else:
            elbow, wrist = _bend(shoulder, reach, 0.29 * s, 0.27 * s, up)
        parts.append(capsule(shoulder, elbow, 0.055 * s, look.sleeve))
        parts += forearm(wrist, elbow, look, bare=bare)
    return tuple(parts)


def shifted(body: Iterable[Solid], by: Point) -> Body:
    """The same body somewhere else: what an animation does frame by frame."""
    return tuple(replace(part, at=part.at + by) for part in body)


def random_hand(rng: np.random.Generator, cell: Workcell) -> Body:
    """A hand that reaches over any edge of the table of `cell`, with its arm."""
    low, high = np.array(cell.low), np.array(cell.high)
    side = rng.integers(4)
    axis, sign = side // 2, (-1.0, 1.0)[side % 2]
    edge = rng.uniform(low, high)
    edge[axis] = (low if sign < 0 else high)[axis]
    outward = np.zeros(3)
    outward[axis] = sign
    wrist = edge - rng.uniform(0.0, 0.5) * outward
    wrist[2] = rng.uniform(0.06, 0.4)
    outward[1 - axis] = rng.normal(0, 0.4)
    outward[2] = rng.uniform(-0.05, 0.7)
    outward /= np.linalg.norm(outward)
    elbow = wrist + rng.uniform(0.23, 0.29) * outward
    look = random_look(rng)
    bare = bool(rng.random() < 0.5)
    shoulder = elbow + rng.uniform(0.28, 0.34) * outward + [0, 0, rng.uniform(0, 0.12)]
    upper = capsule(elbow, shoulder, 0.055, look.sleeve)
    return (*forearm(wrist, elbow, look, bare=bare, spread_m=rng.uniform(0, 0.025)), upper)


def random_person(rng: np.random.Generator, cell: Workcell) -> Body:
    """Somebody at the edge of the table of `cell`, on any side but the arm's, most reaching in."""
    low, high = np.array(cell.low), np.array(cell.high)
    side = rng.integers(3)
    gap = rng.uniform(0.08, 0.3)
    if side == 0:
        feet = np.array([low[0] - gap, rng.uniform(low[1] + 0.1, high[1]), cell.floor_m])
    elif side == 1:
        feet = np.array([high[0] + gap, rng.uniform(low[1] + 0.35, high[1]), cell.floor_m])
    else:
        feet = np.array([rng.uniform(low[0], high[0]), high[1] + gap, cell.floor_m])
    middle = np.array([rng.uniform(-0.3, 0.3), rng.uniform(0.4, 0.8), 0.0])
    reach = np.array([*(feet[:2] + rng.uniform(0.4, 0.9) * (middle - feet)[:2]), 0.0])
    reach[2] = rng.uniform(0.08, 0.4)
    return person(
        feet,
        (middle - feet)[:2],
        random_look(rng),
        height_m=rng.uniform(1.5, 1.95),
        lean=rng.uniform(0.0, 0.6),
        reach=reach if rng.random() < 0.75 else None,
        bare=bool(rng.random() < 0.5),
    )


def random_intruder(rng: np.random.Generator, cell: Workcell) -> Body:
    """A hand or a person."""
    return random_hand(rng, cell) if rng.random() < 0.6 else random_person(rng, cell)


def draw(body: Iterable[Solid], scene: Any) -> None:
    """Add `body` to a `mujoco.MjvScene` that was just updated; it stays for one rendering.

    Parts that the scene has no room for are left out, as MuJoCo does with its own.
    """
    import mujoco

    kinds = {
        "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
        "ellipsoid": mujoco.mjtGeom.mjGEOM_ELLIPSOID,
        "box": mujoco.mjtGeom.mjGEOM_BOX,
        "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    }
    for part in body:
        if scene.ngeom >= scene.maxgeom:
            return
        geom = scene.geoms[scene.ngeom]
        colour = np.array(part.rgba, np.float32)
        size = part.size
        if part.kind in ("capsule", "cylinder"):
            size = np.array([size[0], size[2], 0.0])  # MuJoCo: radius, half length
        mujoco.mjv_initGeom(geom, kinds[part.kind], size, part.at, part.turn.ravel(), colour)
        scene.ngeom += 1


def _along(axis: Point) -> np.ndarray:
    """A rotation whose third column points along `axis`."""
    z = axis / np.linalg.norm(axis)
    least = np.eye(3)[np.argmin(np.abs(z))]
    x = np.cross(least, z)
    x /= np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z], axis=1)


def _bend(
    shoulder: Point, reach: Point, upper_m: float, lower_m: float, up: Point
) -> tuple[Point, Point]:
    """Elbow and wrist of an arm from `shoulder` towards `reach`, the elbow hanging down."""
    way = reach - shoulder
    distance = float(np.clip(np.linalg.norm(way), 0.15, 0.98 * (upper_m + lower_m)))
    ahead = way / np.linalg.norm(way)
    along = (distance**2 + upper_m**2 - lower_m**2) / (2 * distance)
    down = -up + (up @ ahead) * ahead
    down /= max(float(np.linalg.norm(down)), 1e-6)
    sag = np.sqrt(max(upper_m**2 - along**2, 0.0))
    return shoulder + along * ahead + sag * down, shoulder + distance * ahead


def _near(rng: np.random.Generator, tones: Sequence[tuple[float, float, float]]) -> Rgba:
    """One of `tones`, a little off."""
    return _rgba(
        np.clip(np.array(tones[int(rng.integers(len(tones)))]) + rng.normal(0, 0.03, 3), 0, 1)
    )


def _rgba(rgb: np.ndarray) -> Rgba:
    r, g, b = (float(v) for v in rgb)
    return r, g, b, 1.0
