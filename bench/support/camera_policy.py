"""The policy folder that the overhead benchmark serves; see plugin/lerobot_policy_camera_flow.py.

    python -m bench.support.camera_policy FOLDER [--size HEIGHTxWIDTH]

A process of its own, so that a benchmark's other processes do not hold torch.
"""

import argparse
import sys
from pathlib import Path

from bench.support.camera import CAMERAS, SIZE

PLUGIN = Path(__file__).parent / "plugin"
TYPE = "camera_flow"
STATE_DIM = 7
ACTION_DIM = 7
CHUNK = 50
INSTRUCTION = "look around"
FEATURES = [f"observation.images.{camera}" for camera in CAMERAS]
IMAGES = dict.fromkeys(FEATURES, (SIZE, SIZE))


def save(folder: Path, size: tuple[int, int] = (SIZE, SIZE)) -> None:
    """Random weights: nothing about serving a policy depends on what they are."""
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.processor import make_default_pre_post_processors

    sys.path.insert(0, str(PLUGIN))
    from lerobot_policy_camera_flow import CameraFlowConfig, CameraFlowPolicy

    torch.manual_seed(0)
    config = CameraFlowConfig(
        device="cpu",
        instructions=[INSTRUCTION],
        chunk_size=CHUNK,
        width=256,
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (STATE_DIM,)),
            **{key: PolicyFeature(FeatureType.VISUAL, (3, *size)) for key in FEATURES},
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
    )
    statistics = {
        key: {"mean": torch.zeros(dim), "std": torch.ones(dim)}
        for key, dim in (("observation.state", STATE_DIM), ("action", ACTION_DIM))
    }
    before, after = make_default_pre_post_processors(config, statistics, normalizer_device="cpu")
    for part in (CameraFlowPolicy(config), before, after):
        part.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", default=f"{SIZE}x{SIZE}")
    arguments = parser.parse_args()
    height, width = map(int, arguments.size.split("x"))
    save(arguments.folder, (height, width))
