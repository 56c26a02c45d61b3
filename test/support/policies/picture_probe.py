"""A policy folder for robots with cameras, and what its chunks tell of the pictures."""

import io
import os
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
from kairos_ros.msg import ActionChunk, ChunkRequest
from wire import until

from kairos_ros.nodes import qos

PLUGIN = Path(__file__).parent / "plugin"
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(PLUGIN), os.environ.get("PYTHONPATH", "")])}
"""For processes that shall find the plugin."""
JPEG_ERROR = 0.02
"""Largest difference of mean colours that compression makes, of 0..1."""


def save_probe(
    folder: Path, cameras, state_dim: int, action_dim: int, *, gain=40.0, rename_map=None
) -> Path:
    """cameras: policy feature -> (height_px, width_px). gain: action per unit of mean colour."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.processor import make_default_pre_post_processors

    with patch.object(sys, "path", [str(PLUGIN), *sys.path]):
        from lerobot_policy_picture_probe import PictureProbeConfig, PictureProbePolicy

    features = {
        name: PolicyFeature(FeatureType.VISUAL, (3, *size)) for name, size in cameras.items()
    }
    config = PictureProbeConfig(
        device="cpu",
        gain=gain,
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (state_dim,)),
            **features,
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (action_dim,))},
    )
    before, after = make_default_pre_post_processors(config, None, normalizer_device="cpu")
    for step in before.steps:
        if rename_map and hasattr(step, "rename_map"):
            step.rename_map = rename_map
    for part in (PictureProbePolicy(config), before, after):
        part.save_pretrained(folder)
    return folder


class Rounds:
    """What robots asked and were answered on their topics. Of what is made before the operator of
    a robot, that robot has heard when it takes goals."""

    def __init__(self, node, robots) -> None:
        self.asked: dict[tuple, ChunkRequest] = {}
        self.answered: dict[tuple, ActionChunk] = {}
        self.refused: set[tuple] = set()
        """Robot, session and task of rounds that got no actions."""
        for robot in robots:
            node.create_subscription(
                ChunkRequest, f"/{robot}/chunk_request", self._on_request, qos.EVENTS
            )
            node.create_subscription(
                ActionChunk, f"/{robot}/action_chunk", self._on_chunk, qos.EVENTS
            )

    def _on_request(self, request):
        self.asked[key_of(request)] = request

    def _on_chunk(self, chunk):
        if chunk.kind == ActionChunk.ACTIONS:
            self.answered[key_of(chunk)] = chunk
        elif chunk.kind == ActionChunk.REFUSED:
            self.refused.add(key_of(chunk)[:3])

    def served(self, robot=""):
        """(request, chunk) of every round that got actions."""
        return [
            (self.asked[key], chunk)
            for key, chunk in list(self.answered.items())
            if key in self.asked and key[0] == (robot or key[0])
        ]

    def of_newest(self, last: int) -> list[tuple[ChunkRequest, ActionChunk]]:
        """`served` of the newest task of the only robot, once its last round was heard: the result
        of a task may overtake it."""

        def heard():
            pairs = self.served()
            newest = max((int(request.task) for request, _ in pairs), default=0)
            pairs = [pair for pair in pairs if int(pair[0].task) == newest]
            return any(request.round == last for request, _ in pairs) and pairs

        return until(heard, what=f"for round {last} of the task")


def check_history(rounds: Rounds, last: int) -> None:
    """Of an emulated engine that reads two observations, whose action 2 is the first number of the
    earlier one: a robot that moves sent two, and they differ where its driver told something new
    between them, which a busy one does not always. last: round of its newest task."""
    served = rounds.of_newest(last)
    moved = 0
    for request, chunk in served:
        (before,) = request.earlier
        assert len(before.images) == len(request.images)
        assert set(chunk.actions[2 :: chunk.action_dim]) == {before.state[0]}
        moved += not np.array_equal(before.state, request.state)
    assert moved


def key_of(message) -> tuple:
    return message.robot, message.session, message.task, message.round, message.attempt


def told(chunk, cameras: int, gain: float) -> np.ndarray:
    """What a chunk message tells of every camera: mean colours 0..1, float [cameras, channels]."""
    actions = np.asarray(chunk.actions).reshape(chunk.horizon, chunk.action_dim)
    channels = chunk.action_dim // cameras
    return actions[0, : cameras * channels].reshape(cameras, channels) / gain


def seen(request, keys) -> np.ndarray:
    """Mean colours of the request's pictures, float [cameras, 3] in the order of `keys`."""
    pictures = dict(zip(request.image_keys, request.images, strict=True))
    return np.array([mean_colour(bytes(pictures[key].data)) for key in keys])


def mean_colour(jpeg: bytes) -> np.ndarray:
    """float [3] in 0..1."""
    from PIL import Image

    with Image.open(io.BytesIO(jpeg)) as image:
        return np.asarray(image.convert("RGB")).reshape(-1, 3).mean(0) / 255
