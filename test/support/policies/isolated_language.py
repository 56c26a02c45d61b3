"""What a tiny pi policy says about one observation, without any of the engine's shortcuts.

LeRobot's own functions on the whole sequence for every token: one robot, its padding included, no
cache, no prefill that is shared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lerobot.policies.common.vla_utils import make_att_2d_masks, prepare_attention_masks_4d
from observations import observed

END = 2
"""`<eos>` of the byte tokenizer."""


@dataclass
class Said:
    """Greedy tokens, and by how much the least clear one was the best."""

    tokens: list[int]
    margin: float


@torch.inference_mode()
def isolated(engine, request, text: str, most: int, answers: Sequence[str] = ()) -> Said:
    """Tokens up to and with END, or `most`; of `answers` up to where only one begins so."""
    loaded = engine._loaded
    policy, model = loaded.policy, loaded.policy.model
    batch = loaded.preprocess(observed(engine, [request]))
    images, image_masks = policy._preprocess_images(batch)
    prompt = batch["observation.language.tokens"], batch["observation.language.attention_mask"]
    prefix, pads, _ = model.embed_prefix(images, image_masks, *prompt)
    told = [[*_tokens(loaded, answer), END] for answer in answers]
    asked, said, margin = _tokens(loaded, text), [], float("inf")
    while len(said) < most and (not said or said[-1] != END):
        left = [answer for answer in told if answer[: len(said)] == said]
        if said and len(left) == 1:
            break
        scores = _next(model, prefix, pads, asked + said)
        allowed = sorted({answer[len(said)] for answer in left}) or list(range(len(scores)))
        best = scores[allowed].topk(min(2, len(allowed)))
        if len(allowed) > 1:
            margin = min(margin, float(best.values[0] - best.values[1]))
        said.append(allowed[int(best.indices[0])])
    return Said(said, margin)


def chosen(engine, request, text: str, answers: Sequence[str]) -> str:
    """The allowed answer that `isolated` begins."""
    said = isolated(engine, request, text, 64, answers).tokens
    (answer,) = (a for a in answers if [*_tokens(engine._loaded, a), END][: len(said)] == said)
    return answer


def _next(model, prefix, pads, tokens: list[int]) -> torch.Tensor:
    """Logits [vocabulary] after these tokens."""
    tower = model.paligemma_with_expert
    suffix = tower.embed_language_tokens(torch.tensor([tokens]))
    ahead, count = prefix.shape[1], len(tokens)
    seen = make_att_2d_masks(
        torch.cat([pads, torch.ones(1, count, dtype=torch.bool)], dim=1),
        torch.tensor([[0] * ahead + [1] * count]),
    )
    positions = torch.cumsum(torch.cat([pads, torch.ones(1, count).bool()], dim=1), dim=1) - 1
    (hidden, _), _ = tower.forward(
        attention_mask=prepare_attention_masks_4d(seen),
        position_ids=positions,
        past_key_values=None,
        inputs_embeds=[torch.cat([prefix, suffix.to(prefix.dtype)], dim=1), None],
        use_cache=False,
    )
    return tower.paligemma.lm_head(hidden[0, -1]).float()


def _tokens(loaded, text: str) -> list[int]:
    (tokenizer,) = (
        step.input_tokenizer for step in loaded.preprocess.steps if hasattr(step, "input_tokenizer")
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]
