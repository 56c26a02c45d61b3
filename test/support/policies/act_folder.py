"""A small ACT as LeRobot saves it, with random weights, for robots with cameras."""

from pathlib import Path


def save_act(folder: Path, cameras, lowest, highest, chunk_size: int = 30) -> Path:
    """cameras: policy feature -> (height_px, width_px). Its actions, one for each value of the
    state, lie about the middle of `lowest` and `highest` and mostly within a tenth of the way."""
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    low, high = torch.tensor(lowest), torch.tensor(highest)
    size = (len(low),)
    config = ACTConfig(
        device="cpu",
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, size),
            **{
                name: PolicyFeature(FeatureType.VISUAL, (3, *shape))
                for name, shape in cameras.items()
            },
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, size)},
        chunk_size=chunk_size,
        n_action_steps=chunk_size,
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
    statistics |= dict.fromkeys(cameras, pictures)
    for part in (policy, *make_pre_post_processors(config, dataset_stats=statistics)):
        part.save_pretrained(folder)
    return folder
