"""A small ACT as LeRobot saves it, with random weights, for robots with cameras.

`python act_folder.py FOLDER SPEC` saves it, in a process of its own: tests do not hold torch.
"""

import json
import subprocess
import sys
from pathlib import Path


def save_act(folder: Path, cameras, lowest, highest, chunk_size: int = 30) -> Path:
    """cameras: policy feature -> (height_px, width_px). Its actions, one for each value of the
    state, lie about the middle of `lowest` and `highest` and mostly within a tenth of the way."""
    spec = {"cameras": cameras, "low": lowest, "high": highest, "chunk": chunk_size}
    command = [sys.executable, __file__, str(folder), json.dumps(spec)]
    subprocess.run(command, check=True, timeout=300)
    return folder


def _save(folder: Path, spec) -> None:
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    low, high = torch.tensor(spec["low"]), torch.tensor(spec["high"])
    size = (len(low),)
    config = ACTConfig(
        device="cpu",
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, size),
            **{
                name: PolicyFeature(FeatureType.VISUAL, (3, *shape))
                for name, shape in spec["cameras"].items()
            },
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, size)},
        chunk_size=spec["chunk"],
        n_action_steps=spec["chunk"],
        dim_model=64,
        n_heads=4,
        dim_feedforward=64,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        pretrained_backbone_weights=None,
    )
    torch.manual_seed(0)
    policy = ACTPolicy(config)
    with torch.no_grad():  # the same at every step but for what it sees
        policy.model.action_head.weight.mul_(0.2)
    about = {"mean": (low + high) / 2, "std": (high - low) / 20}
    pictures = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)}
    statistics = {"observation.state": about, "action": about}
    statistics |= dict.fromkeys(spec["cameras"], pictures)
    for part in (policy, *make_pre_post_processors(config, dataset_stats=statistics)):
        part.save_pretrained(folder)


if __name__ == "__main__":
    _save(Path(sys.argv[1]), json.loads(sys.argv[2]))
