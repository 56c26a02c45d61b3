"""What every judge is, whichever model answers. Imports numpy only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np

from kairos_ros.core.calls.call import NOBODY, Caller


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to judge: what the cameras see now, what is asked of it, what may be answered."""

    kind: str
    """Which component asks, for counters and messages: "safety", "task_state", ..."""
    prompt: str
    """As the fleet file words it, for example "is the workcell safe?" (Rosa, Figure 3)."""
    instruction: str
    """What the robot was told to do."""
    images: tuple[np.ndarray, ...]
    """uint8 [height, width, 3], RGB, one per camera."""
    answers: tuple[str, ...]
    """The allowed answers, at least two different ones."""
    caller: Caller = NOBODY
    """Who asks. It changes no answer: a server before several models may order calls by it."""
    slo_ns: int = 0
    """How long the answer may take from now on; 0: not said."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an answer cost, where the model says so; failed attempts included."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question."""

    answer: str
    """One of the question's answers."""
    probabilities: Mapping[str, float] | None
    """Allowed answer -> probability among the allowed ones; None where the model does not tell."""
    latency_s: float
    """From the call of `judge` to this answer."""
    model: str
    """Which model answered."""
    cost: Cost | None = None


class FailureCode(StrEnum):
    """Why a question has no answer."""

    BAD_QUESTION = "bad_question"  # images, answers or prompt that this judge cannot take
    UNKNOWN_INSTRUCTION = "unknown_instruction"  # the model knows a closed set of instructions
    TIMEOUT = "timeout"  # no answer within the judge's time
    UNREACHABLE = "unreachable"  # no connection, or it broke each time
    OVERLOADED = "overloaded"  # the server asked to come back later than there was time for
    REFUSED = "refused"  # the server does not accept the request or the key
    SERVER_ERROR = "server_error"  # the server failed each time
    BAD_ANSWER = "bad_answer"  # what came back is none of the allowed answers


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one question has no answer. Never taken for an answer: the robot's fallback decides."""

    code: FailureCode
    message: str
    """In words; of an unknown instruction what follows "the monitor ...": see `unknown`."""
    latency_s: float
    model: str
    cost: Cost | None = None


@runtime_checkable
class Judge(Protocol):
    """Answers questions about pictures, several in one call. Used from one thread at a time."""

    model: str
    """Which model answers, as it appears in verdicts."""

    def judge(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        """One outcome per question, in order; a bad question fails alone.

        An outcome depends on its own question only. Raises nothing for a bad question, an
        unreachable server or a garbage answer: those are failures of the questions concerned.
        """
        ...

    def close(self) -> None:
        """Frees connections and memory; later calls are an error."""
        ...


def unknown(instruction: str, known: Sequence[str], meant: str | None) -> str:
    """The message of `FailureCode.UNKNOWN_INSTRUCTION`, for whoever gave the instruction; meant:
    the known one that is nearest."""
    text = f"does not know the task {instruction!r:.200}; it knows {', '.join(map(repr, known))}"
    return text if meant is None else f"{text}; did you mean {meant!r}?"


def complaint(question: Question) -> str | None:
    """What is wrong with a question whichever model gets it, or None."""
    if len(set(question.answers)) < 2 or not all(a.strip() for a in question.answers):
        return f"allowed answers are {question.answers}; give at least two different words"
    if not question.prompt.strip():
        return "the prompt is empty"
    if not question.images:
        return "there is no image to judge"
    for number, image in enumerate(question.images):
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
            return f"image {number} is {getattr(image, 'dtype', type(image))}, expected uint8"
        if image.ndim != 3 or image.shape[2] != 3 or min(image.shape) < 1:
            return f"image {number} is of shape {image.shape}, expected [height, width, 3]"
    return None
