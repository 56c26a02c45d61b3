"""ACT: one forward pass, without noise and without steps."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kairos_ros.engine.policies.sampler import FamilyCode


class ActSampler:
    """Gives the whole chunk.

    Temporal ensembling, which blends the chunks of successive control periods, is LeRobot's own
    loop around this pass (`select_action`): here the chunk is executed as it is.
    """

    observations = 1

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.chunk_size = policy.config.chunk_size
        self.action_dim = policy.config.action_feature.shape[0]

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        chunk = self._policy.predict_action_chunk(batch)
        return chunk, chunk.new_zeros((0, *chunk.shape))


CODE = FamilyCode(ActSampler, step=lambda policy: (policy.model, "forward"))
