"""Is this request one that the policy can answer? Asked before it is queued."""

import numpy as np

from kairos_ros.core.errors import RefusalCode
from kairos_ros.serving.exchange import Query, Refusal
from kairos_ros.transport.messages import EngineDescription

MAX_ID_BYTES = 128
"""Longest robot, session or task id."""
MAX_TEXT_BYTES = 1000
"""Longest instruction, task kind or horizon policy."""


def check_query(query: Query, policy: EngineDescription, max_bytes: int) -> Refusal | None:
    """Why `policy` cannot answer `query`, or None. Image contents are checked by the engine."""
    if query.size_bytes > max_bytes:
        return Refusal(
            RefusalCode.TOO_LARGE,
            f"observation of {query.size_bytes} bytes, at most {max_bytes} are accepted; "
            "send smaller or stronger compressed images",
        )
    texts = {
        "robot": (query.robot, MAX_ID_BYTES),
        "session": (query.session, MAX_ID_BYTES),
        "task": (query.task, MAX_ID_BYTES),
        "instruction": (query.instruction, MAX_TEXT_BYTES),
        "task_kind": (query.kind, MAX_TEXT_BYTES),
        "horizon_policy": (query.horizon, MAX_TEXT_BYTES),
    }
    for name, (text, limit) in texts.items():
        if 4 * len(text) > limit and len(text.encode()) > limit:  # a character takes 1 to 4 bytes
            return Refusal(
                RefusalCode.TOO_LARGE,
                f"{name} of {len(text.encode())} bytes, at most {limit} are accepted",
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
