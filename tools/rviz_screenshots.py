"""Photographs a genuine rviz that shows a small fleet at work: docs/images/rviz_*.png.

Needs root, Debian 12 and the network once: rviz 1.14 of ROS 1, whose displays rviz 2 inherited, is
installed into an overlay of this host's files (about 350 MB under build/), which only processes in
a mount namespace of their own ever see. What is on the screen are the messages of our viz node,
field by field, and our config/kairos.rviz with its classes called as ROS 1 calls them.

Ends with exit code 1 where a picture does not show what it should: pixels in the colours of the
paths, that move from picture to picture; red where somebody stands in a cell.

    .venv/bin/python tools/rviz_screenshots.py
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from PIL import Image as Pillow
from rviz_photographer import Photographer, View, install, translated
from rviz_stage import Stage, one_arm, simulated_fleet

from kairos_ros.host.domain import stay_on_this_host

REPOSITORY = Path(__file__).parents[1]
PICTURES = ("fleet", "chunk", "unsafe", "so101", "franka")
VIEW = (366, 62, 1583, 970)
"""Left, top, right and bottom of what is no panel, in px."""
TABLES = (366, 495, 1583, 630)
"""Where the arms of a fleet work."""
NEAR_HAND = (300, 300, 950, 680)
"""Of that, where the paths are in the picture of one arm."""
SETTLE_S = 5.0
SHOTS = 12
SEEN_WITHIN_S = 90.0
"""On a busy machine without a GPU, rviz draws a picture in seconds."""
PATHS_PX, PATH_PX, EDGES_PX, PAD_PX = 150, 300, 2000, 5000
"""Fewest of the colour of what shall be seen: paths of a fleet, a path, a zone, a running robot."""
VIEWS = {
    "chunk": View(1.55, (0.0, 0.62, 0.16), 2.15, 0.5),
    "unsafe": View(2.6, (0.0, 0.6, 0.05), 1.75, 0.5),
    "so101": View(0.85, (0.12, 0.0, 0.10), 1.0, 0.35),
    "franka": View(1.9, (0.25, 0.0, 0.35), 1.0, 0.3),
}


def main() -> int:
    options = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    options.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "images")
    options.add_argument(
        "--root", type=Path, default=REPOSITORY / "build" / "rviz_root", help="of rviz's files"
    )
    options.add_argument("--robots", type=int, default=4)
    options.add_argument("--logs", type=Path, default=Path(mkdtemp(prefix="rviz-shots-")))
    options.add_argument("--only", default=",".join(PICTURES), help="pictures, separated by commas")
    given = options.parse_args()
    if os.geteuid() != 0:
        print("an isolated root needs root; nothing was done", file=sys.stderr)
        return 2
    stay_on_this_host()
    root = given.root.resolve()
    install(root, given.logs / "install.log")
    wanted = given.only.split(",")
    if unknown := sorted(set(wanted) - set(PICTURES)):
        print(f"there is no picture {unknown[0]!r}; there are {', '.join(PICTURES)}")
        return 2
    with Photographer(root) as photographer:
        album = Album(photographer, given.out)
        if {"fleet", "chunk", "unsafe"} & set(wanted):
            with simulated_fleet(given.robots, given.logs, photographer.pass_on) as stage:
                album.take(stage, [one for one in PICTURES[:3] if one in wanted])
        for arm in ("so101", "franka"):
            if arm in wanted:
                with one_arm(arm, given.logs, photographer.pass_on) as stage:
                    album.take(stage, [arm])
    return int(bool(album.problems))


def coloured(picture: Pillow.Image, colour: tuple[float, ...], within: float = 40.0) -> np.ndarray:
    """bool [height, width]: pixels of about that colour, 0 to 1, however shaded."""
    pixels = np.asarray(picture, np.float32)
    wanted = 255 * np.array(colour[:3], np.float32)
    brightness = np.maximum(pixels.max(axis=2, keepdims=True), 1.0) / wanted.max()
    return (np.abs(pixels / brightness - wanted).max(axis=2) < within) & (brightness[..., 0] > 0.45)


class Album:
    """Takes pictures of a stage and keeps those that show what they should."""

    def __init__(self, photographer: Photographer, out: Path) -> None:
        self.problems: list[str] = []
        self._photographer = photographer
        self._out = out

    def take(self, stage: Stage, names: Sequence[str]) -> None:
        for name in names:
            if name == "fleet":
                self._fleet()
            elif name == "unsafe":
                self._unsafe(stage)
            else:
                self._paths(name, stage)

    def _fleet(self) -> None:
        from kairos_ros.viz import colours

        self._open("fleet", View(6.6, (0.0, -0.2, 0.3), 1.5708, 0.42))
        shots = self._shoot_until(
            lambda seen: sum(n > PATHS_PX for n in seen) >= SHOTS,
            lambda picture: int(coloured(picture.crop(TABLES), colours.TO_COME).sum()),
        )
        best = max(shots, key=lambda shot: shot[1])
        self._expect(best[1] > PATHS_PX, f"paths over the tables ({best[1]} px)")
        self._keep("fleet", best[0])

    def _paths(self, name: str, stage: Stage) -> None:
        """The best of many pictures of one arm: much to come and much executed."""
        from kairos_ros.viz import colours

        def near(picture: Pillow.Image, colour: tuple[float, ...]) -> np.ndarray:
            return coloured(picture.crop(VIEW).crop(NEAR_HAND), colour)

        def both(picture: Pillow.Image) -> int:
            to_come, done = (near(picture, c).sum() for c in (colours.TO_COME, colours.EXECUTED))
            pad = coloured(picture.crop(VIEW), colours.RUNNING).sum() - to_come
            return int(min(to_come, 4 * done)) if pad > PAD_PX else 0

        self._open(name, VIEWS[name].of(stage.robots[0]))
        shots = self._shoot_until(lambda seen: sum(n > PATH_PX for n in seen) >= SHOTS, both)
        picture, pixels = max(shots, key=lambda shot: shot[1])
        self._expect(pixels > PATH_PX, f"what was executed, and what is to come ({pixels} px)")
        paths = [near(shot, colours.TO_COME) for shot, _ in shots]
        moved = sum((a ^ b).sum() > PATH_PX / 2 for a, b in itertools.pairwise(paths))
        self._expect(moved > SHOTS / 2, f"the path moved {moved} times in {len(shots)} pictures")
        self._keep(name, picture.crop(VIEW))

    def _unsafe(self, stage: Stage) -> None:
        from kairos_ros.viz import colours

        def pixels(picture: Pillow.Image, colour: tuple[float, ...]) -> int:
            return int(coloured(picture.crop(VIEW), colour).sum())

        robot = stage.robots[0]
        self._open("unsafe", VIEWS["unsafe"].of(robot))
        calm = self._shoot_until(
            lambda seen: seen[-1] > EDGES_PX, lambda picture: pixels(picture, colours.SAFE)
        )[-1][0]
        stage.disturb(robot, "intruder")
        before = pixels(calm, colours.UNSAFE)
        shots = self._shoot_until(
            lambda seen: sum(n > before + EDGES_PX for n in seen) >= 3,
            lambda picture: pixels(picture, colours.UNSAFE),
        )
        picture, red = max(shots, key=lambda shot: shot[1])
        self._expect(
            red > before + EDGES_PX, f"a cell with somebody in it turns red ({before} to {red} px)"
        )
        self._keep("unsafe", picture)
        stage.disturb(robot, "clear")

    def _open(self, name: str, view: View) -> None:
        print(f"opening rviz for {name}", flush=True)
        self._photographer.open(translated(REPOSITORY / "config" / "kairos.rviz", view))
        time.sleep(SETTLE_S)

    def _shoot_until(
        self, enough: Callable[[list[int]], object], count: Callable[[Pillow.Image], int]
    ) -> list[tuple[Pillow.Image, int]]:
        """Picture after picture, and what `count` says of each, until it is enough or too late."""
        shots: list[tuple[Pillow.Image, int]] = []
        end = time.monotonic() + SEEN_WITHIN_S
        while not shots or (
            not enough([counted for _, counted in shots]) and time.monotonic() < end
        ):
            picture = self._photographer.shoot()
            shots.append((picture, count(picture)))
            time.sleep(0.4)
        return shots

    def _keep(self, name: str, picture: Pillow.Image) -> None:
        picture.save(self._out / f"rviz_{name}.png", optimize=True)

    def _expect(self, true: object, what: str) -> None:
        print(f"{'ok' if true else 'WRONG'}: {what}", flush=True)
        if not true:
            self.problems.append(what)


if __name__ == "__main__":
    sys.exit(main())
