"""Episodes as a LeRobot dataset (format 3.0), written by LeRobot itself."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import datasets
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from kairos_ros.core.errors import WireError
from kairos_ros.recording.datasets.episode import Episode, Frame
from kairos_ros.transport.picture import picture

DOCUMENT = "meta/kairos_ros.json"
"""What the dataset was made from, beside LeRobot's own files."""
COLUMNS: Mapping[str, tuple[str, str]] = {
    "next.success": ("bool", "true in the last frame of a task that succeeded"),
    "next.done": ("bool", "true in the last frame of every task"),
    "round": ("int64", "round of the action, from 1; 0: it is of no chunk"),
    "chunk_index": ("int64", "of the action in its round's chunk"),
    "attempt": ("int64", "resets of body and scene in the task so far"),
    "held_periods": ("int64", "control periods just before, in which the arm held: no frames"),
    "intervention": ("bool", "the action led to the safe state; no policy chose it"),
    "released": ("bool", "first frame after a human released the robot"),
    "monitor": ("int64", "newest report of a monitor: 0 ongoing, 1 done, 2 failed, -1 none"),
    "safe": ("int64", "newest verdict of a safety service: 1 safe, 0 unsafe, -1 none"),
    "time_s": ("float32", "since the task's first frame, on the robot's clock"),
}
"""Columns besides state, action and pictures: type, and meaning."""
PICTURE_AGE = "picture_age_s"
"""Another column, where there are pictures: age of the frame's oldest one, float32."""
_WRITER_THREADS = 2


@dataclass(frozen=True, slots=True)
class DatasetShape:
    """What all episodes of a dataset have in common."""

    state_names: tuple[str, ...]
    action_dim: int
    rate_hz: int
    cameras: Mapping[str, tuple[int, int]]
    """Camera -> height and width in px."""


class LeRobotWriter:
    """A dataset that is being written. Raises OSError where it cannot be."""

    def __init__(self, folder: Path, repo_id: str, shape: DatasetShape, *, video: bool) -> None:
        """folder: must not exist. video: pictures become videos (AV1, by PyAV), else PNG files
        inside of the tables."""
        self._folder, self._shape = folder, shape
        datasets.disable_progress_bars()  # one for every episode
        os.environ.setdefault("SVT_LOG", "1")  # of the encoder: errors only
        av.logging.set_libav_level(av.logging.ERROR)  # else FFmpeg prints a line for every episode
        features: dict[str, dict[str, Any]] = {
            "observation.state": _values("float32", shape.state_names),
            "action": _values("float32", [f"action_{i}" for i in range(shape.action_dim)]),
        }
        for camera, (height, width) in shape.cameras.items():
            features[f"observation.images.{camera}"] = {
                "dtype": "video" if video else "image",
                "shape": (height, width, 3),
                "names": ["height", "width", "channels"],
            }
        features |= {name: _values(kind, [name]) for name, (kind, _) in COLUMNS.items()}
        if shape.cameras:
            features[PICTURE_AGE] = _values("float32", [PICTURE_AGE])
        self._dataset = LeRobotDataset.create(
            repo_id,
            fps=shape.rate_hz,
            features=features,
            root=folder,
            robot_type="kairos_ros",
            use_videos=video and bool(shape.cameras),
            video_backend="pyav",  # torchcodec needs an FFmpeg of the system
            image_writer_threads=_WRITER_THREADS if shape.cameras else 0,
        )

    def add(self, episode: Episode) -> None:
        """Writes an episode of the dataset's shape. Raises WireError, and writes nothing of it,
        for a picture that cannot be decoded or has another size."""
        decode = lru_cache(maxsize=2 * len(self._shape.cameras))(picture)  # many frames show one
        try:
            for number, frame in enumerate(episode.frames):
                row = self._row(frame, decode)
                last = number == len(episode.frames) - 1
                row["next.done"] = np.array([last])
                row["next.success"] = np.array([last and episode.success])
                self._dataset.add_frame(row | {"task": frame.instruction})
        except WireError:
            self._dataset.clear_episode_buffer()
            raise
        self._dataset.save_episode(parallel_encoding=False)

    def close(self, document: Mapping[str, Any]) -> None:
        """Ends the dataset; `document` says where it comes from, as JSON."""
        self._dataset.finalize()
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (self._folder / DOCUMENT).write_text(text + "\n")

    def discard(self) -> None:
        """Ends it, for its folder to be removed."""
        with suppress(Exception):  # it may have failed for the same reason as what went before
            self._dataset.finalize()

    def _row(self, frame: Frame, decode: Callable[[bytes], np.ndarray]) -> dict[str, Any]:
        row: dict[str, Any] = {"observation.state": frame.state, "action": frame.action}
        for name, (kind, _) in COLUMNS.items():
            if not name.startswith("next."):
                row[name] = np.array([getattr(frame, name)], kind)
        for camera, size in self._shape.cameras.items():
            pixels = decode(frame.pictures[camera].encoded)
            if pixels.shape[:2] != size:
                raise WireError(f"a picture of {camera} has another size than announced")
            row[f"observation.images.{camera}"] = pixels
        if self._shape.cameras:
            oldest_s = max(shown.age_s for shown in frame.pictures.values())
            row[PICTURE_AGE] = np.array([oldest_s], np.float32)
        return row


def _values(kind: str, names: Any) -> dict[str, Any]:
    return {"dtype": kind, "shape": (len(names),), "names": list(names)}
