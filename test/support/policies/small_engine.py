"""An engine of nothing in particular, and a link to it, for tests that place requests."""

from kairos_ros.transport.link_estimate import LinkState
from kairos_ros.transport.messages import EngineDescription

SMALL_ENGINE = EngineDescription(
    policy_id="p-1",
    policy_type="p",
    state_dim=3,
    images={},
    action_dim=2,
    chunk_size=20,
    steps=4,
    instructions=None,
    device="cpu",
    dtype="float32",
    max_batch=4,
)
LINK = LinkState(
    rtt_s=0.1,
    min_rtt_s=0.1,
    jitter_s=0.0,
    bytes_per_s=125e6,
    loss=0.0,
    request_bytes=125_000.0,  # 1 ms
)
