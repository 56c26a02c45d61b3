"""LeRobot's features and batches against what a served policy reads."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE
from numpy.typing import NDArray
from PIL import Image

from kairos_ros.core.exchange import Observation
from kairos_ros.core.fit import (
    PolicyInterface,
    RobotInterface,
    camera_name,
    misfit,
    missing_cameras,
)

JPEG_QUALITY = 95


@dataclass(slots=True)
class Seen:
    """One look of one robot; pictures are encoded when they are sent first."""

    state: NDArray[np.float32]
    """float32 [state_dim]."""
    pictures: Mapping[str, torch.Tensor]
    """Camera -> [3, height, width], float from 0 to 1 or uint8."""
    _encoded: dict[str, Observation] = field(default_factory=dict)

    def observation(self, picture_format: str) -> Observation:
        """picture_format: jpeg or png."""
        if picture_format not in self._encoded:
            images = {key: _encode(p, picture_format) for key, p in self.pictures.items()}
            self._encoded[picture_format] = Observation(self.state, images)
        return self._encoded[picture_format]

    def interface(self, action_dim: int, absent: Sequence[str]) -> RobotInterface:
        """What a robot that sees this senses and accepts."""
        sizes = {key: (p.shape[1], p.shape[2]) for key, p in self.pictures.items()}
        return RobotInterface(len(self.state), action_dim, sizes, frozenset(absent))


def input_features(
    policy: PolicyInterface, given: Mapping[str, PolicyFeature]
) -> dict[str, PolicyFeature]:
    """What a served policy reads, by LeRobot's names: those `given` where they mean the same
    camera, since LeRobot compares names."""
    named = {camera_name(key): key for key, f in given.items() if f.type is FeatureType.VISUAL}
    found = {OBS_STATE: PolicyFeature(FeatureType.STATE, (policy.state_dim,))}
    for feature, (height, width) in policy.cameras.items():
        camera = camera_name(feature)
        key = named.get(camera, f"{OBS_IMAGES}.{camera}")
        found[key] = PolicyFeature(FeatureType.VISUAL, (3, height, width))
    return found


def output_features(policy: PolicyInterface) -> dict[str, PolicyFeature]:
    return {ACTION: PolicyFeature(FeatureType.ACTION, (policy.action_dim,))}


def check_features(
    policy: PolicyInterface,
    given_in: Mapping[str, PolicyFeature],
    given_out: Mapping[str, PolicyFeature],
) -> None:
    """Of an environment or data set. Cameras are not looked at: LeRobot compares them itself, and
    may rename them. Raises ValueError."""
    if OBS_STATE in given_in:
        _same(f"its {OBS_STATE} is", given_in[OBS_STATE].shape, (policy.state_dim,), policy)
    if ACTION in given_out:
        _same("its actions are", given_out[ACTION].shape, (policy.action_dim,), policy)


def check_fit(robot: RobotInterface, policy: PolicyInterface) -> None:
    """Raises ValueError where the policy cannot read what the robot sees."""
    missing = missing_cameras(robot.cameras, policy.cameras, robot.absent, optional=policy.optional)
    if missing:
        absent = f", or --policy.absent_cameras='[{', '.join(missing)}]'" * policy.optional
        raise ValueError(
            f"policy {policy.name} reads {', '.join(map(camera_name, policy.cameras))}; of these "
            f"the observation has {', '.join(robot.cameras) or 'none'}: name its cameras by "
            f'--rename_map=\'{{"{OBS_IMAGES}.YOURS": "{OBS_IMAGES}.{missing[0]}"}}\'{absent}, '
            "or choose another policy by --policy.served_policy"
        )
    if text := misfit(robot, policy):
        raise ValueError(text)


def seen_of(batch: Mapping[str, Any], policy: PolicyInterface) -> list[Seen]:
    """One for each row of a batch.

    batch: `observation.state` float [B, state_dim]; pictures of the policy's cameras float
    [B, 3, H, W] from 0 to 1, or uint8. What the policy does not read is left out.

    Raises ValueError for anything else.
    """
    if OBS_STATE not in batch:
        raise ValueError(f"the observation has no {OBS_STATE}; it has {', '.join(sorted(batch))}")
    states = batch[OBS_STATE]
    if not isinstance(states, torch.Tensor) or states.ndim != 2:
        raise ValueError(f"{OBS_STATE} is {_kind(states)}, not a tensor of [batch, state_dim]")
    rows = states.detach().to("cpu", torch.float32).numpy()
    if not np.isfinite(rows).all():
        raise ValueError(f"{OBS_STATE} holds a number that is not finite")
    wanted = set(map(camera_name, policy.cameras))
    pictures = {
        camera_name(key): _pictures(key, value, len(rows))
        for key, value in batch.items()
        if isinstance(key, str) and key.startswith("observation.") and camera_name(key) in wanted
    }
    return [
        Seen(row.copy(), {camera: taken[i] for camera, taken in pictures.items()})
        for i, row in enumerate(rows)
    ]


def instructions_of(batch: Mapping[str, Any], rows: int) -> list[str]:
    """The task of each row; empty where the batch has none. Raises ValueError."""
    task = batch.get("task") or ""
    tasks = [task] * rows if isinstance(task, str) else list(task)
    if len(tasks) == 1:
        tasks *= rows
    if len(tasks) != rows or not all(isinstance(one, str) for one in tasks):
        raise ValueError(f"task is {_kind(task)}, not a text for each of {rows} rows")
    return tasks


def _pictures(key: str, value: Any, rows: int) -> torch.Tensor:
    """[B, 3, height, width]."""
    if not isinstance(value, torch.Tensor) or value.ndim != 4 or value.shape[1] != 3:
        raise ValueError(f"{key} is {_kind(value)}, not a tensor of [batch, 3, height, width]")
    if len(value) != rows:
        raise ValueError(f"{key} has {len(value)} rows, {OBS_STATE} has {rows}")
    return value.detach()


def _encode(picture: torch.Tensor, picture_format: str) -> bytes:
    if picture.dtype != torch.uint8:
        picture = (picture * 255.0).round().clamp(0, 255).to(torch.uint8)
    pixels = picture.permute(1, 2, 0).contiguous().cpu().numpy()
    options: dict[str, Any] = {"quality": JPEG_QUALITY, "subsampling": 0}
    if picture_format == "png":
        options = {"compress_level": 1}
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, picture_format, **options)
    return buffer.getvalue()


def _same(what: str, given: Sequence[int], read: tuple[int, ...], policy: PolicyInterface) -> None:
    if tuple(given) != read:
        raise ValueError(
            f"policy {policy.name} of the server was trained on another robot: {what} of "
            f"shape {tuple(given)} here and {read} there"
        )


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
