"""The language head of pi0 and pi05: their PaliGemma, read to its end."""

from typing import Any

import torch
from lerobot.policies.common.vla_utils import prepare_attention_masks_4d
from torch import Tensor, nn
from transformers import AttentionInterface

from kairos_ros.engine.policies.language.kv_slots import KvBatch

GROUPED = "kairos_grouped"
"""Name of `grouped_attention` among the attention functions of transformers."""


class PaliGemmaHead:
    """Reads further tokens behind a prefill, causally, as PaliGemma writes its answers."""

    def __init__(self, model: Any) -> None:
        """model: of LeRobot's pi0 or pi05."""
        AttentionInterface.register(GROUPED, grouped_attention)
        self._tower = model.paligemma_with_expert
        self._language = self._tower.paligemma.model.language_model
        self._to_words = self._tower.paligemma.lm_head

    def read(self, batch: KvBatch) -> Tensor:
        """Logits float32 [n, vocabulary] after the last token of every row."""
        embedded = self._tower.embed_language_tokens(batch.padded)
        config = self._language.config
        before, config._attn_implementation = config._attn_implementation, GROUPED
        try:
            hidden = self._language.forward(
                inputs_embeds=embedded,
                attention_mask=prepare_attention_masks_4d(batch.seen),
                position_ids=batch.positions,
                past_key_values=batch,
                use_cache=True,
            ).last_hidden_state
        finally:
            config._attn_implementation = before
        rows = torch.arange(len(hidden), device=hidden.device)
        newest = hidden[rows, batch.last]
        logits: Tensor = self._to_words(newest.to(self._to_words.weight.dtype))
        return logits.float()


def grouped_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of several query heads on each head of keys and values, without copies of these.

    The eager one of transformers repeats keys and values for every query head: in a step of one
    token that is more memory to move than all keys and values are.

    query [n, heads, q, dim]; key and value [n, kept heads, L, dim]; attention_mask [n, 1, q, L],
    added to the scores. Returns [n, q, heads, dim].
    """
    rows, heads, tokens, dim = query.shape
    kept = key.shape[1]
    grouped = query.reshape(rows, kept, heads // kept * tokens, dim)
    scores = (grouped @ key.transpose(2, 3) * scaling).view(
        rows, kept, heads // kept, tokens, key.shape[2]
    )
    shares = torch.softmax(scores.float() + attention_mask[:, :, None], dim=-1).to(query.dtype)
    mixed = shares.view(rows, kept, heads // kept * tokens, key.shape[2]) @ value
    return mixed.view(rows, heads, tokens, dim).transpose(1, 2), None
