"""Pre- and postprocessing of the flow-matching MLP policy: LeRobot's default pipelines."""

from typing import Any

import torch
from lerobot.processor import (
    PolicyAction,
    PolicyProcessorPipeline,
    make_default_pre_post_processors,
)

from kairos_ros.engine.flow_mlp.configuration_flow_mlp import FlowMLPConfig


def make_flow_mlp_pre_post_processors(
    config: FlowMLPConfig,
    dataset_stats: dict[str, dict[str, torch.Tensor]] | None = None,
) -> tuple[
    PolicyProcessorPipeline[dict[str, Any], dict[str, Any]],
    PolicyProcessorPipeline[PolicyAction, PolicyAction],
]:
    """Normalise the state on the way in, unnormalise the actions on the way out."""
    return make_default_pre_post_processors(config, dataset_stats, normalizer_device=config.device)
