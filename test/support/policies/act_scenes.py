"""A tiny ACT for scenes of LeRobot's: random weights around one motion."""

from pathlib import Path

FEATURE = "observation.image"


def save_act(
    folder: Path, motion: list[float], *, state_dim: int, pixels: int, spread: float = 0.1
) -> None:
    """A policy folder: chunks of 20 actions, `motion` and what the observation makes of it, about
    `spread` of an action; 10 of them are executed by LeRobot. pixels: of a side of its picture."""
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    torch.manual_seed(0)
    config = ACTConfig(
        device="cpu",
        chunk_size=20,
        n_action_steps=10,
        dim_model=32,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
        pretrained_backbone_weights=None,
        input_features={
            FEATURE: PolicyFeature(FeatureType.VISUAL, (3, pixels, pixels)),
            "observation.state": PolicyFeature(FeatureType.STATE, (state_dim,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (len(motion),))},
    )
    statistics = {
        FEATURE: {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)},
        "observation.state": {"mean": torch.zeros(state_dim), "std": torch.ones(state_dim)},
        "action": {"mean": torch.tensor(motion), "std": torch.full((len(motion),), spread)},
    }
    processors = make_pre_post_processors(config, dataset_stats=statistics)
    for part in (ACTPolicy(config), *processors):
        part.save_pretrained(folder)
