"""Is what an engine elsewhere answered a chunk of the policy that it says it serves?"""

from collections.abc import Iterable

import numpy as np

from kairos_ros.transport.messages import EngineDescription, InferOutcome, InferResult


def chunk_problem(outcomes: Iterable[InferOutcome], policy: EngineDescription) -> str:
    """What is wrong with the first outcome that is no chunk of `policy`; empty: nothing.

    A failure is an answer like any other. An engine of this host is not asked about: it checks
    itself, and is the same installation.
    """
    whole = (policy.chunk_size, policy.action_dim)
    for outcome in outcomes:
        if not isinstance(outcome, InferResult):
            continue
        chunk, updates = outcome.chunk, outcome.updates
        if chunk.shape != whole or chunk.dtype != np.float32:
            return (
                f"a chunk of shape {chunk.shape}, {chunk.dtype}; "
                f"{policy.policy_id} answers {whole}, float32"
            )
        if updates.ndim != 3 or updates.shape[1] != len(chunk):
            return f"updates of shape {updates.shape} for a chunk of {len(chunk)} actions"
        if not (np.isfinite(chunk).all() and np.isfinite(updates).all()):
            return "a chunk that is not finite"
    return ""
