"""A LeRobot policy that looks at cameras and stops the time it takes: a small model to serve.

A third-party plugin as LeRobot defines it: with this folder on PYTHONPATH, our engine and LeRobot's
own server find it through its metadata. With KAIROS_STOPWATCH set, every prediction appends two
int64 to that file: its begin and end, in nanoseconds of the machine's monotonic clock.
"""

import os
import struct
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from lerobot.configs import NormalizationMode, PreTrainedConfig
from lerobot.utils.constants import OBS_STATE
from torch import nn

from kairos_ros.engine.flow_mlp.configuration_flow_mlp import FlowMLPConfig
from kairos_ros.engine.flow_mlp.modeling_flow_mlp import FlowMLPPolicy

POOLED = 8


@PreTrainedConfig.register_subclass("camera_flow")
@dataclass
class CameraFlowConfig(FlowMLPConfig):
    """As flow_mlp, with cameras. Pictures stay in 0..1, as most policies read them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.normalization_mapping["VISUAL"] = NormalizationMode.IDENTITY

    def validate_features(self) -> None:
        """Takes any cameras: flow_mlp's own check wants them together with flow_mlp's own eyes."""


class CameraFlowPolicy(FlowMLPPolicy):
    """flow_mlp whose state is shifted by what the cameras see."""

    config_class = CameraFlowConfig
    name = "camera_flow"

    def __init__(self, config: CameraFlowConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self._cameras = []  # flow_mlp does not look: this class does
        seen = len(config.image_features) * 3 * POOLED * POOLED
        self.look = nn.Linear(seen, config.robot_state_feature.shape[0])
        path = os.environ.get("KAIROS_STOPWATCH")
        self._laps = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if path else None

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Any], **kwargs: Any) -> torch.Tensor:
        begin = time.monotonic_ns()
        pictures = [batch[key] for key in self.config.image_features]
        seen = [F.adaptive_avg_pool2d(picture, POOLED).flatten(1) for picture in pictures]
        state = batch[OBS_STATE] + self.look(torch.cat(seen, 1))
        chunk = super().predict_action_chunk(batch | {OBS_STATE: state}, **kwargs)
        if self._laps is not None:
            os.write(self._laps, struct.pack("<qq", begin, time.monotonic_ns()))
        return chunk
