"""A question as the body of a chat completion request, and how it is held to the allowed answers.

Servers differ in what they understand, and none says which it does: `endpoint_judge.py` tries the
ways in order and keeps the first that brings back an allowed answer.
"""

import base64
import io
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from kairos_ros.core.errors import WireError
from kairos_ros.vlm.judge import Question

JPEG_QUALITY = 90
MOST_TOKENS = 32
"""Room for {"answer": "ongoing"} in any tokenizer."""

TASK, ANSWERS = "The robot's task: ", "Answer with one of: "


class Constraint(StrEnum):
    """Fields of the request that restrict what may be generated."""

    STRUCTURED_OUTPUTS = "structured_outputs"  # vLLM from 0.11 on
    GUIDED_CHOICE = "guided_choice"  # vLLM before that
    REGEX = "regex"  # SGLang
    RESPONSE_FORMAT = "response_format"  # OpenAI, SGLang, llama.cpp: a JSON schema
    PROMPT = "prompt"  # nothing but the words of the prompt


def constraint_fields(constraint: Constraint, answers: Sequence[str]) -> dict[str, Any]:
    """What the request says beside its messages."""
    match constraint:
        case Constraint.STRUCTURED_OUTPUTS:
            return {"structured_outputs": {"choice": list(answers)}}
        case Constraint.GUIDED_CHOICE:
            return {"guided_choice": list(answers)}
        case Constraint.REGEX:
            return {"regex": "(" + "|".join(re.escape(answer) for answer in answers) + ")"}
        case Constraint.RESPONSE_FORMAT:
            schema = {
                "type": "object",
                "properties": {"answer": {"type": "string", "enum": list(answers)}},
                "required": ["answer"],
                "additionalProperties": False,
            }
            wanted = {"name": "verdict", "strict": True, "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": wanted}}
        case Constraint.PROMPT:
            return {}


def chat_request(model: str, question: Question, constraint: Constraint) -> dict[str, Any]:
    """The body of a chat completion request."""
    pictures = [
        {"type": "image_url", "image_url": {"url": data_url(image)}} for image in question.images
    ]
    words = {"type": "text", "text": question_text(question)}
    return {
        "model": model,
        "messages": [{"role": "user", "content": [*pictures, words]}],
        "temperature": 0.0,
        "max_tokens": MOST_TOKENS,
        **constraint_fields(constraint, question.answers),
    }


def question_text(question: Question) -> str:
    """The question in words, for any chat model."""
    return (
        f"{question.prompt}\n{TASK}{question.instruction}\n{ANSWERS}{', '.join(question.answers)}."
    )


def read_question_text(text: str) -> tuple[str, str, tuple[str, ...]]:
    """(prompt, instruction, answers) of what `question_text` said.

    Raises WireError for any other text.
    """
    prompt, task, rest = text.partition(f"\n{TASK}")
    instruction, answer, answers = rest.rpartition(f"\n{ANSWERS}")
    if not (task and answer and answers.endswith(".")):
        raise WireError(f"{text!r:.80} is no question that a judging node asks")
    return prompt, instruction, tuple(answers[:-1].split(", "))


def data_url(image: np.ndarray) -> str:
    """uint8 [height, width, 3] as a JPEG in a data URL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
