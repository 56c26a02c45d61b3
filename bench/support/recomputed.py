"""A policy on its own: what it answers to a state and a seed, whoever asks with whom."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.worker.loading import load_engine
from kairos_ros.transport.messages import InferRequest, InferResult

BATCH = 16


class Recomputed:
    """Loads the policy as an engine worker does, in this process."""

    def __init__(self, policy: str) -> None:
        self._engine = load_engine(EngineOptions(policy, device="cpu"), lambda said: None)

    def chunks(
        self, asked: Sequence[tuple[NDArray[np.float32], int]], instruction: str
    ) -> list[NDArray[np.float32]]:
        """float32 [chunk_size, action_dim] per (state, seed). Raises RuntimeError for a refusal."""
        found: list[NDArray[np.float32]] = []
        for begin in range(0, len(asked), BATCH):
            requests = [
                InferRequest("robot", "session", "1", 1, 0, seed, instruction, state)
                for state, seed in asked[begin : begin + BATCH]
            ]
            for outcome in self._engine.infer(requests):
                if not isinstance(outcome, InferResult):
                    raise RuntimeError(f"the policy refused: {outcome}")
                found.append(outcome.chunk)
        return found
