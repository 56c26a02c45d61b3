"""The state policy of this package."""

from tiny_families.base import CHUNK, INSTRUCTIONS, STEPS, Tiny

TINY = {
    "flow_mlp": Tiny(
        "flow_mlp",
        lambda _: {
            "instructions": INSTRUCTIONS,
            "chunk_size": CHUNK,
            "num_steps": STEPS,
            "width": 32,
        },
        cameras=(),
        instructions=tuple(INSTRUCTIONS),
    )
}
