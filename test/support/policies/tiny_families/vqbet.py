"""VQ-BeT with two observation steps."""

from typing import Any

from tiny_families.base import CHUNK, Tiny, from_queues


def trained(policy: Any) -> None:
    """As after both phases of training."""
    policy.vqbet.action_head.vqvae_model.discretized.fill_(True)


TINY = {
    "vqbet": Tiny(
        "vqbet",
        lambda _: {
            "n_obs_steps": 2,
            "action_chunk_size": CHUNK,
            "crop_shape": None,
            "pretrained_backbone_weights": None,
            "spatial_softmax_num_keypoints": 4,
            "vqvae_embedding_dim": 16,
            "vqvae_enc_hidden_dim": 16,
            "gpt_block_size": 32,
            "gpt_input_dim": 32,
            "gpt_output_dim": 32,
            "gpt_hidden_dim": 32,
            "gpt_n_layer": 2,
            "gpt_n_head": 2,
        },
        trained=trained,
        steps=0,
        reads_text=False,
        unit=4.0,
        noise_shape=None,
        lerobot=from_queues,
        seeded=True,
        sums=False,
    )
}
