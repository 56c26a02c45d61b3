"""pi0-FAST: a PaliGemma that writes its actions, as tokens of their cosine transform."""

from collections.abc import Sequence
from typing import Any

from lerobot.policies.molmoact2.molmoact2_hf_model.action_tokenizer import UniversalActionProcessor
from torch import Tensor
from transformers import AutoProcessor, PretrainedConfig

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.sampler import FamilyCode, RowDraws


class FastTokenizerConfig(PretrainedConfig):  # type: ignore[misc]  # it has no types
    """Nobody reads it: transformers finds a processor by the configuration that it belongs to."""

    model_type = "fast_action_tokenizer"


class Pi0FastSampler:
    """There is no tap: no steps. Tokens are drawn by the row's own generator, where the policy
    draws them at all (`temperature`)."""

    observations = 1

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.chunk_size = policy.config.n_action_steps
        self.action_dim = policy.config.action_feature.shape[0]
        self._tokens = len(policy.action_tokenizer.bpe_tokenizer)
        self._decode = policy.decode_actions_with_fast
        policy.decode_actions_with_fast = self._decode_all

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        with RowDraws(seeds):
            chunk = self._policy.predict_action_chunk(batch)
        return chunk, chunk.new_zeros((0, *chunk.shape))

    def _decode_all(self, token_ids: list[Tensor], **shape: int) -> Any:
        """Raises PolicyError for tokens that are not of actions. LeRobot would make zeros of them,
        which are actions, too."""
        for row in token_ids:
            if not len(row) or row.min() < 0 or row.max() >= self._tokens:
                raise PolicyError("its tokens are not valid actions")
        return self._decode(token_ids, **shape)


def configure(_config: Any) -> None:
    """Has transformers read the tokenizer for actions by LeRobot's own code. It comes from a folder
    that brings none (`served.Family.publisher`)."""
    AutoProcessor.register(FastTokenizerConfig, UniversalActionProcessor, exist_ok=True)


CODE = FamilyCode(Pi0FastSampler, configure=configure)
