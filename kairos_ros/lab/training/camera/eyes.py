"""Trains the eyes of a camera policy: from pictures to the poses that they show.

The poses are known in training alone. A part of the episodes is held back: how wrong the trained
eyes are about these tells the rest of the policy how far to trust them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.flow_mlp.eyes import Eyes
from kairos_ros.lab.training.camera.pictures import Pictures
from kairos_ros.lab.training.camera.vision import POSITION_UNIT_M, Vision
from kairos_ros.lab.training.course import Course, Schedule

MOST_MOVED_PX = 4
"""Crops are moved by up to this much in training."""
HELD_BACK = 10
"""One episode of so many."""
TURN_WEIGHT, POINT_WEIGHT = 0.3, 1.0
"""Of the losses for quaternions, and for pointing at the points in the picture."""
WARM_UP_STEPS = 100
CLOSE = 0.05
"""Errors below this, 5 mm, are punished by their square."""


@dataclass(frozen=True, slots=True)
class EyesSettings:
    """What defines the training of the eyes; a resumed run must agree."""

    episodes: int = 100
    """Pictured demonstrations per scene."""
    minutes: float | None = 40.0
    steps: int | None = None
    """Exactly one of `minutes` and `steps` is set."""
    batch_size: int = 32
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ConfigError("set exactly one of --eyes-minutes and --eyes-steps")
        if self.episodes < HELD_BACK:
            raise ConfigError(
                f"--pictured {self.episodes} is too few: one episode of {HELD_BACK} is held back, "
                f"so a task needs {HELD_BACK} or more"
            )


def image_key(camera: str) -> str:
    """The feature of a LeRobot policy that is pictures of `camera`."""
    return f"observation.images.{camera}"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which block and row of it each moment is, and what is known of it."""

    block: Tensor
    row: Tensor
    task: Tensor
    state: Tensor
    places: Tensor
    """As `Vision.told` says."""
    point: Tensor
    """float32 [T, cameras, points, 2]: down and right, -1..1 in the crop."""
    held_back: Tensor


class Sights:
    """All moments of all scenes."""

    def __init__(self, vision: Vision, pictures: Mapping[str, Sequence[Pictures]]) -> None:
        self._vision = vision
        self._crops = torch.tensor([vision.crops[key] for key in vision.cameras])
        self.scenes = tuple(pictures)
        self._images = [block.image for blocks in pictures.values() for block in blocks]
        blocks = [block for blocks in pictures.values() for block in blocks]
        counts = torch.tensor([len(block.state) for block in blocks])
        tasks = [task for task, scene in enumerate(pictures) for _ in pictures[scene]]
        self._rows = _Rows(
            block=torch.repeat_interleave(torch.arange(len(blocks)), counts),
            row=torch.cat([torch.arange(count) for count in counts]),
            task=torch.repeat_interleave(torch.tensor(tasks), counts),
            state=_joined([block.state for block in blocks]),
            places=_joined([vision.told(block.places) for block in blocks]),
            point=self._in_crops(_joined([block.pixel for block in blocks])),
            held_back=_joined([block.episode for block in blocks]) % HELD_BACK == 0,
        )
        self._shown = torch.nonzero(~self._rows.held_back)[:, 0]

    def __len__(self) -> int:
        return len(self._rows.row)

    def loss(self, eyes: Eyes, batch_size: int, mean: Tensor, std: Tensor) -> Tensor:
        """Of a random batch (torch's global generator); `mean` and `std` normalise the state."""
        chosen = self._shown[torch.randint(len(self._shown), (batch_size,))]
        # Points are told as in crops that were not moved: places do not move with the crop.
        moved = torch.randint(-MOST_MOVED_PX, MOST_MOVED_PX + 1, (batch_size, len(self._crops), 2))
        back = (2.0 * moved / self._crops[:, 2:]).to(mean.device)
        parts, state, task, places = self._inputs(chosen, moved, mean, std)
        points = eyes.points(_relit(parts), task)
        points = [p + back[:, number, None] for number, p in enumerate(points)]
        seen = eyes.told(points, state, task)
        target = self._rows.point[chosen].to(mean.device)
        weight = torch.full((seen.shape[-1],), TURN_WEIGHT, device=seen.device)
        weight[list(self._vision.positions)] = 1.0
        wrong = F.smooth_l1_loss(seen, places, beta=CLOSE, reduction="none")
        there = (target.abs() <= 1).all(-1)
        pointed = torch.stack([p[:, : len(self._vision.points)] for p in points], 1)
        pointing = F.smooth_l1_loss(pointed, target, beta=CLOSE, reduction="none").mean(-1)
        missed = (pointing * there).sum() / there.sum().clamp(min=1)
        return (wrong * weight).mean() + POINT_WEIGHT * missed

    def moments(self) -> dict[str, int]:
        """Scene -> pictured moments."""
        counts = torch.bincount(self._rows.task, minlength=len(self.scenes)).tolist()
        return dict(zip(self.scenes, counts, strict=True))

    @torch.no_grad()
    def errors(self, eyes: Eyes, mean: Tensor, std: Tensor) -> dict[str, Tensor]:
        """Scene -> float32 [T, places]: what the eyes tell of the episodes held back, less the
        truth, in units of `Vision.told`."""
        found: dict[str, list[Tensor]] = {scene: [] for scene in self.scenes}
        for chosen in torch.nonzero(self._rows.held_back)[:, 0].split(64):
            still = torch.zeros(len(chosen), len(self._crops), 2, dtype=torch.int64)
            parts, state, task, places = self._inputs(chosen, still, mean, std)
            points = eyes.points([part.float() / 255 for part in parts], task)
            wrong = (eyes.told(points, state, task) - places).cpu()
            for at, number in enumerate(self._rows.task[chosen].tolist()):
                found[self.scenes[number]].append(wrong[at])
        return {scene: torch.stack(errors) for scene, errors in found.items()}

    def error_mm(self, errors: Tensor) -> dict[str, list[float]]:
        """Median and 90 % quantile of the distance, of each point."""
        positions = errors[:, list(self._vision.positions)].unflatten(-1, (-1, 3))
        miss = 1000 * POSITION_UNIT_M * positions.norm(dim=-1)
        return {
            "median_mm": [round(float(v), 1) for v in miss.median(0).values],
            "p90_mm": [round(float(v), 1) for v in miss.quantile(0.9, dim=0)],
        }

    def _in_crops(self, pixel: Tensor) -> Tensor:
        """Points right and down in shares of whole pictures as down and right, -1..1 in the
        crops."""
        whole = torch.tensor(list(self._vision.cameras.values()))[:, None]
        crop = self._crops[:, None]
        return 2.0 * (pixel.flip(-1) * whole - crop[..., :2]) / crop[..., 2:] - 1.0

    def _inputs(
        self, chosen: Tensor, moved: Tensor, mean: Tensor, std: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
        """Of these moments, where `mean` is: crops uint8 [B, 3, h, w] per camera, moved down and
        right by int64 [B, cameras, 2] pixels, normalised state, task and `Vision.told` places."""
        blocks, of_block = self._rows.block[chosen].tolist(), self._rows.row[chosen].tolist()
        parts = []
        for camera, (top, left, high, wide) in enumerate(self._crops.tolist()):
            corners = (moved[:, camera] + torch.tensor([top, left])).tolist()
            cut = [
                self._images[block][row, camera, y : y + high, x : x + wide]
                for block, row, (y, x) in zip(blocks, of_block, corners, strict=True)
            ]
            parts.append(torch.from_numpy(np.stack(cut)).to(mean.device).permute(0, 3, 1, 2))
        state = (self._rows.state[chosen].to(mean.device) - mean) / std
        task = F.one_hot(self._rows.task[chosen], len(self.scenes)).float().to(mean.device)
        return parts, state, task, self._rows.places[chosen].to(mean.device)


def train_eyes(
    settings: Any,
    eyes: Eyes,
    sights: Sights,
    state: Mapping[str, Tensor],
    path: Path,
    save_every_s: float,
    report: Callable[[str], None],
) -> bool:
    """Trains `eyes` in place and leaves them with their averaged weights; False after Ctrl-C.

    settings: a `TrainSettings` with eyes. state: mean and std of the state. path: resumable file.
    """
    wanted: EyesSettings = settings.eyes

    def loss() -> Tensor:
        return sights.loss(eyes, wanted.batch_size, state["mean"], state["std"])

    course = Course(
        eyes,
        loss,
        Schedule(wanted.minutes, wanted.steps, wanted.learning_rate, settings.seed, WARM_UP_STEPS),
        path,
        json.dumps({"scenes": settings.scenes, "seed": settings.seed} | asdict(wanted)),
    )
    course.restore()
    count = sum(p.numel() for p in eyes.parameters())
    report(
        f"eyes: {len(sights)} pictured moments, {count / 1e6:.2f} M parameters, from step"
        f" {course.position.step}"
    )
    if not course.run("eyes", save_every_s, report):
        return False
    with torch.no_grad():
        for name, parameter in eyes.named_parameters():
            parameter.copy_(course.average[name])
    return True


def eyes_record(errors: Mapping[str, Tensor], sights: Sights) -> dict[str, Any]:
    """For training.json: moments, and the errors of positions in held-back episodes, mm."""
    moments = sights.moments()
    return {
        scene: {"moments": moments[scene]} | sights.error_mm(errors[scene])
        for scene in sights.scenes
    }


def _relit(pictures: Sequence[Tensor]) -> list[Tensor]:
    """Float in 0..1 of uint8 pictures [B, 3, h, w] per camera: brighter or darker, and tinted."""
    count = len(pictures[0])
    gain = 1 + 0.1 * torch.randn(count, 1, 1, 1) + 0.03 * torch.randn(count, 3, 1, 1)
    offset = 0.03 * torch.randn(count, 1, 1, 1)
    gain, offset = gain.to(pictures[0].device), offset.to(pictures[0].device)
    return [picture.float() * (gain / 255) + offset for picture in pictures]


def _joined(arrays: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays))
