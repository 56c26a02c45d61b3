"""VQ-BeT: one forward pass that draws the codes of a chunk, without steps."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.sampler import FamilyCode, RowDraws, with_steps


class VqbetSampler:
    """There is no tap: no steps. The codes are drawn by the row's own generator."""

    def __init__(self, policy: Any) -> None:
        """Raises PolicyError for a checkpoint of the first phase of training."""
        config = policy.config
        if not policy.vqbet.action_head.vqvae_model.discretized:
            raise PolicyError(
                "its training ended before n_vqvae_training_steps "
                f"({config.n_vqvae_training_steps}): nothing has learnt to choose actions yet; "
                "train it on"
            )
        self._policy = policy
        self.chunk_size = config.action_chunk_size
        self.action_dim = config.action_feature.shape[0]
        self.observations = config.n_obs_steps

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        with RowDraws(seeds):
            # LeRobot's predict_action_chunk reads the queues of one robot that select_action fills
            chunk = self._policy.vqbet(with_steps(self._policy.config, batch), rollout=True)
        return chunk, chunk.new_zeros((0, *chunk.shape))


CODE = FamilyCode(VqbetSampler)
