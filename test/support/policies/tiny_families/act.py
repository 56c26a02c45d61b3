"""ACT with two cameras."""

from tiny_families.base import CAMERA, CHUNK, WRIST, Tiny

TINY = {
    "act": Tiny(
        "act",
        lambda _: {
            "chunk_size": CHUNK,
            "n_action_steps": CHUNK,
            "dim_model": 32,
            "dim_feedforward": 32,
            "n_encoder_layers": 1,
            "n_vae_encoder_layers": 1,
            "pretrained_backbone_weights": None,
        },
        cameras=(CAMERA, WRIST),
        steps=0,
        reads_text=False,
        draws=False,
        noise_shape=None,
        sums=False,
    )
}
