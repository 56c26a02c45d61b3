"""The policies of this package: one that reads a state, and one that looks at a camera, too."""

from tiny_families.base import CAMERA, CHUNK, INSTRUCTIONS, STEPS, Tiny

SMALL = {"instructions": INSTRUCTIONS, "chunk_size": CHUNK, "num_steps": STEPS, "width": 32}

TINY = {
    "flow_mlp": Tiny("flow_mlp", lambda _: SMALL, cameras=(), instructions=tuple(INSTRUCTIONS)),
    "flow_mlp_cameras": Tiny(
        "flow_mlp",
        lambda _: SMALL | {"sees": 6, "crops": {CAMERA: [2, 3, 28, 40]}},
        instructions=tuple(INSTRUCTIONS),
    ),
}
