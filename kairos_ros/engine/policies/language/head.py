"""The language head of pi0 and pi05: their PaliGemma, read to its end."""

from typing import Any

import torch
from lerobot.policies.common.vla_utils import prepare_attention_masks_4d
from torch import Tensor

from kairos_ros.engine.policies.language.kv_slots import KvBatch


class PaliGemmaHead:
    """Reads further tokens behind a prefill, causally, as PaliGemma writes its answers."""

    def __init__(self, model: Any) -> None:
        """model: of LeRobot's pi0 or pi05."""
        self._tower = model.paligemma_with_expert
        self._language = self._tower.paligemma.model.language_model
        self._to_words = self._tower.paligemma.lm_head

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self._to_words.weight.shape[0])

    def read(self, batch: KvBatch) -> Tensor:
        """Logits float32 [n, vocabulary] after the last token of every row."""
        embedded = self._tower.embed_language_tokens(batch.padded)
        hidden = self._language.forward(
            inputs_embeds=embedded,
            attention_mask=prepare_attention_masks_4d(batch.seen),
            position_ids=batch.positions,
            past_key_values=batch,
            use_cache=True,
        ).last_hidden_state
        rows = torch.arange(len(hidden), device=hidden.device)
        newest = hidden[rows, batch.last]
        logits: Tensor = self._to_words(newest.to(self._to_words.weight.dtype))
        return logits.float()
