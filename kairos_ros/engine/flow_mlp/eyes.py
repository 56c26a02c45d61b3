"""What a flow_mlp policy with cameras sees: from pictures to a few values."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_POINTS = 16
"""Places in the picture that a camera's network points at."""
_HIDDEN = 256


class Eyes(nn.Module):
    """One convolutional network per camera, whose last maps are read as points in the picture
    (spatial softmax, Finn et al. 2016), and an MLP that joins them with the state and the task."""

    def __init__(
        self, crops: Sequence[Sequence[int]], state_dim: int, tasks: int, values: int
    ) -> None:
        """crops: of every camera top, left, height and width in pixels."""
        super().__init__()
        self._crops = [tuple(crop) for crop in crops]
        self.cameras = nn.ModuleList(Camera(tasks) for _ in crops)
        self.read = nn.Sequential(
            nn.Linear(2 * _POINTS * len(crops) + state_dim + tasks, _HIDDEN),
            nn.SiLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.SiLU(),
            nn.Linear(_HIDDEN, values),
        )

    def forward(self, pictures: Sequence[Tensor], state: Tensor, task: Tensor) -> Tensor:
        """Values [B, values]. `pictures`: float [B, 3, H, W] in 0..1 each; state [B, S] and task
        [B, T] as the policy reads them."""
        crops = zip(pictures, self._crops, strict=True)
        parts = [p[:, :, y : y + high, x : x + wide] for p, (y, x, high, wide) in crops]
        return self.told(self.points(parts, task), state, task)

    def points(self, parts: Sequence[Tensor], task: Tensor) -> list[Tensor]:
        """Per camera, where in the crop [B, 3, h, w] its points are, down and right in -1..1,
        [B, points, 2]."""
        return [camera(part, task) for camera, part in zip(self.cameras, parts, strict=True)]

    def told(self, points: Sequence[Tensor], state: Tensor, task: Tensor) -> Tensor:
        """Values [B, values] of the points of every camera."""
        told: Tensor = self.read(torch.cat([*(p.flatten(1) for p in points), state, task], -1))
        return told


class Camera(nn.Module):
    """From a picture to points in it; the task says what to look for."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 16, 5, 2, 2)
        self.down2 = nn.Conv2d(16, 32, 3, 2, 1)
        self.mid = nn.Conv2d(32, 32, 3, 1, 1)
        self.film = nn.Linear(tasks, 2 * 32)
        self.out = nn.Conv2d(32, _POINTS, 3, 1, 1)
        self.norm, self.norm2 = nn.GroupNorm(4, 16), nn.GroupNorm(8, 32)
        self.norm3 = nn.GroupNorm(8, 32)
        self.sharpness = nn.Parameter(torch.ones(_POINTS))

    def forward(self, picture: Tensor, task: Tensor) -> Tensor:
        """Of `picture` [B, 3, H, W] in 0..1: where the points are, down and right in -1..1,
        [B, points, 2]."""
        x = F.relu(self.norm(self.down(picture.sub(0.5).mul(4.0))))
        x = F.relu(self.norm2(self.down2(x)))
        gain, offset = self.film(task)[:, :, None, None].chunk(2, 1)
        x = F.relu(self.norm3(self.mid(x)) * (1 + gain) + offset)
        maps = self.out(x)
        height, width = maps.shape[-2:]
        share = (maps.flatten(2) * self.sharpness[:, None]).softmax(-1).view_as(maps)
        down = torch.linspace(-1, 1, height, device=maps.device)
        right = torch.linspace(-1, 1, width, device=maps.device)
        return torch.stack([share.sum(3) @ down, share.sum(2) @ right], -1)
