"""Is this request one that the policy can answer? Asked before it is queued."""

import numpy as np

from kairos_ros.core.errors import RefusalCode
from kairos_ros.serving.exchange import Query, Refusal
from kairos_ros.transport.messages import EngineDescription


def check_query(query: Query, policy: EngineDescription, max_bytes: int) -> Refusal | None:
    """Why `policy` cannot answer `query`, or None. Image contents are checked by the engine."""
    if query.size_bytes > max_bytes:
        return Refusal(
            RefusalCode.TOO_LARGE,
            f"observation of {query.size_bytes} bytes, at most {max_bytes} are accepted; "
            "send smaller or stronger compressed images",
        )
    if query.state.shape != (policy.state_dim,):
        return Refusal(
            RefusalCode.BAD_STATE,
            f"state has {query.state.size} values, {policy.policy_type} reads {policy.state_dim}",
        )
    if not np.isfinite(query.state).all():
        where = int(np.flatnonzero(~np.isfinite(query.state))[0])
        return Refusal(
            RefusalCode.NOT_FINITE, f"state[{where}] is {query.state[where]}", retry_after_s=0.1
        )
    missing = sorted(set(policy.images) - set(query.images))
    if missing:
        return Refusal(
            RefusalCode.BAD_IMAGE,
            f"image {missing[0]!r} is missing; the policy reads {sorted(policy.images)}, "
            f"the request has {sorted(query.images)}",
        )
    if policy.instructions is not None and query.instruction not in policy.instructions:
        return Refusal(
            RefusalCode.UNKNOWN_INSTRUCTION,
            f"instruction {query.instruction!r} is none of the {len(policy.instructions)} that "
            f"this policy was trained on, for example {policy.instructions[0]!r}",
        )
    return None
