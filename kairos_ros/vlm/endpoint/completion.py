"""Reads a chat completion: which allowed answer it gives, how likely, at what cost.

Everything here comes from another host: whatever does not fit is None or a ValueError, never a
guess.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kairos_ros.vlm.judge import Cost


def read_completion(
    body: bytes, answers: Sequence[str]
) -> tuple[str | None, dict[str, float] | None, Cost, str]:
    """(answer, probabilities, cost, what the model said) of the body of a response.

    The answer is None where what the model said is none of the allowed ones. Raises ValueError for
    a body that is no chat completion.
    """
    try:
        data = json.loads(body)
        choice = data["choices"][0]
        text = choice["message"]["content"]
        usage = data.get("usage") or {}
        cost = Cost(_count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no chat completion ({error!r:.80}): {body[:80]!r}") from None
    if not isinstance(text, str):
        raise ValueError(f"no chat completion: its content is {type(text).__name__}")
    answer = allowed_answer(text, answers)
    likely = None
    if answer is not None:
        likely = probabilities(choice.get("logprobs"), answer, answers)
    return answer, likely, cost, text


def allowed_answer(text: str, answers: Sequence[str]) -> str | None:
    """The allowed answer that `text` is: bare, or {"answer": ...}.

    A sentence is none, whatever words are in it: "not safe" has a "safe" in it.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        return next((a for a in answers if data.get("answer") == a), None)
    return next((a for a in answers if _bare(a) == _bare(text)), None)


def _bare(text: str) -> str:
    return text.strip(" \t\r\n.!\"'`*").lower()


def probabilities(logprobs: Any, answer: str, answers: Sequence[str]) -> dict[str, float] | None:
    """Allowed answer -> probability, from the token at which the given answer begins.

    None where the server tells no log probabilities, or where they do not show the answer. An
    answer whose first token is not among the likeliest that the server lists counts as 0.
    """
    try:
        tokens = logprobs["content"]
        texts = [str(token["token"]) for token in tokens]
        begins = "".join(texts).lower().find(answer.lower())
        if begins < 0:
            return None
        at, before = 0, 0
        while before + len(texts[at]) <= begins:
            before += len(texts[at])
            at += 1
        lead = texts[at][: begins - before]
        listed = {str(t["token"]): float(t["logprob"]) for t in tokens[at]["top_logprobs"]}
        listed.setdefault(texts[at], float(tokens[at]["logprob"]))
        mass = dict.fromkeys(answers, 0.0)
        for token, logprob in listed.items():
            starts = token.removeprefix(lead).strip().lower()
            could_be = [a for a in answers if starts and a.lower().startswith(starts)]
            if len(could_be) == 1:
                mass[could_be[0]] += math.exp(min(logprob, 0.0))
    except (LookupError, TypeError, ValueError):
        return None
    whole = sum(mass.values())
    if not math.isfinite(whole) or mass[answer] <= 0:
        return None
    return {a: m / whole for a, m in mass.items()}


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name, 0)
    return value if isinstance(value, int) and value >= 0 else 0
