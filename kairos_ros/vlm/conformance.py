"""What every judge plugged in must do. Authors of judges call this in their tests.

Raises AssertionError with what was expected of which question.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from kairos_ros.vlm.judge import Failure, FailureCode, Judge, Question, Verdict


def check_judge(judge: Judge, questions: Sequence[Question]) -> None:
    """Asks `questions`, at least two different ones that the judge can answer.

    Every one must get an allowed answer, alone and in any company, with probabilities (where given)
    over exactly the allowed answers that sum to one and agree with the answer. Bad questions must
    fail alone, with a code and a one-line message, and leave their neighbours' answers as they are.
    """
    _expect(isinstance(judge, Judge), "an implementation of Judge", str(type(judge)))
    _expect(bool(judge.model), "the name of a model", str(type(judge)))
    before = [image.copy() for question in questions for image in question.images]
    together = judge.judge(questions)
    _expect(len(together) == len(questions), "one outcome per question", f"{len(questions)}")
    for question, outcome in zip(questions, together, strict=True):
        _check_verdict(judge, question, outcome)
    after = [image for question in questions for image in question.images]
    _expect(all(map(np.array_equal, before, after)), "the images unchanged", "a batch")
    _expect(judge.judge([]) == [], "no outcomes for no questions", "an empty batch")
    for question, outcome in zip(questions, together, strict=True):
        (alone,) = judge.judge([question])
        _check_same(question, outcome, alone)
    backwards = reversed(judge.judge(questions[::-1]))
    for question, outcome, again in zip(questions, together, backwards, strict=True):
        _check_same(question, outcome, again)
    for case, bad in _bad_questions(questions[0]).items():
        first, failed, last = judge.judge([questions[0], bad, questions[-1]])
        _check_same(questions[0], together[0], first)
        _check_same(questions[-1], together[-1], last)
        _expect(isinstance(failed, Failure), "a failure", case)
        failed = cast(Failure, failed)
        _expect(failed.code == FailureCode.BAD_QUESTION, "code bad_question", case)
        _expect(bool(failed.message) and "\n" not in failed.message, "a one-line message", case)


def _check_verdict(judge: Judge, question: Question, outcome: Verdict | Failure) -> None:
    case = f"{question.kind} about {question.instruction!r}: {outcome}"
    _expect(isinstance(outcome, Verdict), "a verdict", case)
    outcome = cast(Verdict, outcome)
    _expect(outcome.answer in question.answers, f"one of {question.answers}", case)
    _expect(outcome.latency_s > 0, "a positive latency", case)
    _expect(outcome.model == judge.model, f"the model {judge.model}", case)
    if outcome.probabilities is not None:
        given = outcome.probabilities
        _expect(set(given) == set(question.answers), "a probability per allowed answer", case)
        _expect(all(0 <= p <= 1 for p in given.values()), "probabilities in [0, 1]", case)
        _expect(math.isclose(sum(given.values()), 1, abs_tol=1e-4), "a sum of one", case)
        _expect(given[outcome.answer] == max(given.values()), "the likeliest answer", case)
    if outcome.cost is not None:
        tokens = outcome.cost.prompt_tokens, outcome.cost.completion_tokens
        _expect(min(tokens) >= 0, "token counts that are not negative", case)


def _check_same(question: Question, one: Verdict | Failure, other: Verdict | Failure) -> None:
    case = f"{question.kind} about {question.instruction!r}: {one}, then {other}"
    _expect(isinstance(other, Verdict), "the same answer", case)
    one, other = cast(Verdict, one), cast(Verdict, other)
    _expect(one.answer == other.answer, "the same answer", case)
    if one.probabilities and other.probabilities:
        near = all(
            math.isclose(p, other.probabilities[a], abs_tol=0.02)
            for a, p in one.probabilities.items()
        )
        _expect(near, "the same probabilities", case)


def _bad_questions(good: Question) -> dict[str, Question]:
    image = good.images[0]
    return {
        "no image": replace(good, images=()),
        "a grey image": replace(good, images=(image[..., 0],)),
        "a float image": replace(good, images=(image / 255.0,)),
        "an image without pixels": replace(good, images=(image[:0],)),
        "a single allowed answer": replace(good, answers=good.answers[:1]),
        "the same answer twice": replace(good, answers=good.answers[:1] * 2),
        "an empty answer": replace(good, answers=(*good.answers, " ")),
        "no prompt": replace(good, prompt=" "),
    }


def _expect(condition: bool, what: str, case: str) -> None:
    if not condition:
        raise AssertionError(f"expected {what} for {case}")
