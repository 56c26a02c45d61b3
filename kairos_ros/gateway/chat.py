"""A chat completion request, as far as a gateway has to know it, and its answer.

Everything here comes from another process: what does not fit is a WireError, never a guess.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from kairos_ros.core.errors import WireError

LARGEST_REQUEST = 32 << 20
"""Bytes: pictures travel in the body."""
LARGEST_ANSWER = 4 << 20
PICTURE_TOKENS = 256
"""Taken for a picture until a server has counted: what models make of one differs."""
BYTES_PER_TOKEN = 4
MOST_TOKENS = 131_072
"""That an answer is believed to have."""
MODEL_BYTES = 256


@dataclass(frozen=True, slots=True)
class Chat:
    """A request."""

    model: str
    stream: bool
    prompt_tokens: int
    """Estimated: a quarter of the text's bytes, and 256 for each picture."""
    body: bytes
    """As it came; servers get the same bytes."""


def read_chat(body: bytes) -> Chat:
    """Raises WireError, which says what is wrong."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the body is not JSON: {error!s:.100}") from None
    if not isinstance(said, dict):
        raise WireError(f"the body is {type(said).__name__}, not an object")
    model, messages, stream = said.get("model"), said.get("messages"), said.get("stream", False)
    if not is_name(model):
        raise WireError(f"model is {model!r:.80}; name one of GET /v1/models")
    if not isinstance(messages, list) or not messages:
        raise WireError("messages is missing; it is a list of at least one message")
    if not isinstance(stream, bool):
        raise WireError(f"stream is {stream!r:.40}; use true or false")
    return Chat(model, stream, sum(_tokens(one) for one in messages), body)


def is_name(model: Any) -> TypeGuard[str]:
    """What calls can ask for. JSON can hold half a character, which no bytes can."""
    named = isinstance(model, str) and model.isprintable()
    return named and 0 < len(model.encode()) <= MODEL_BYTES


def _tokens(message: Any) -> int:
    """Raises WireError."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return len(content) // BYTES_PER_TOKEN + 1
    if content is None and isinstance(message, dict) and message.get("role") == "assistant":
        return 1  # a call of a tool has no text
    if not isinstance(content, list):
        raise WireError(f"a message's content is {type(content).__name__}; use text or a list")
    tokens = 1
    for part in content:
        if not isinstance(part, dict):
            raise WireError("a part of a message's content is not an object")
        text = part.get("text")
        tokens += len(text) // BYTES_PER_TOKEN if isinstance(text, str) else PICTURE_TOKENS
    return tokens


@dataclass(frozen=True, slots=True)
class Said:
    """What an answer says of itself."""

    model: str
    completion_tokens: int
    """0: not said, or not believable."""


def read_said(body: bytes) -> Said:
    """Of the whole body of an answer, or of one event of a streamed one.

    Raises WireError for a body that is no chat completion.
    """
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise WireError(f"the server's answer is no JSON: {body[:80]!r}") from None
    if not isinstance(said, dict) or not isinstance(said.get("choices"), list):
        raise WireError(f"the server's answer is no chat completion: {body[:80]!r}")
    model, usage = said.get("model"), said.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else 0
    if not isinstance(tokens, int) or not 0 <= tokens <= MOST_TOKENS:
        tokens = 0
    return Said(model if isinstance(model, str) else "", tokens)


def error_body(message: str, code: str) -> dict[str, Any]:
    """As OpenAI words errors, so that clients show the message."""
    return {"error": {"message": message, "type": code, "code": code}}
