"""In front of a model: threads that put questions to it, a few at a time, in the queue's order.

More than one or two requests in flight only move the queue into the model's server, where nobody
can order it. Questions of several components may share them; they do where they share a model.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.calls.call import Caller
from kairos_ros.core.errors import WireError
from kairos_ros.transport.picture import picture
from kairos_ros.vlm.judge import Judge, Question, Verdict
from kairos_ros.vlm.judgement_queue import (
    JudgementQueue,
    Obligation,
    Order,
    Requester,
    earliest_deadline,
)

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""How long `close` waits for a model to finish what it is at."""
BAD_PICTURE, RAISED, BAD_PROBABILITY = "bad_picture", "judge_raised", "bad_probability"
"""Failures besides those of `FailureCode`."""


@dataclass(frozen=True, slots=True)
class JudgementRequest:
    """What shall be judged."""

    kind: str
    """See `Question`, as for the next three."""
    prompt: str
    instruction: str
    answers: tuple[str, ...]
    pictures: tuple[bytes, ...]
    """JPEG or PNG, decoded only when the question's turn has come."""
    on_result: "Callable[[JudgementResult], None]"
    """Called in a thread of the judges, with what came of it."""
    task: str = ""
    """Id of the task that the robot does; see `Caller`, as for the next two."""
    workflow: str = ""
    upstream: str = ""


@dataclass(frozen=True, slots=True)
class JudgementResult:
    """An answer, or why there is none."""

    request: JudgementRequest
    verdict: Verdict | None
    failure: str
    """A `FailureCode` or one of the above; empty with a verdict."""
    message: str
    """Of the failure."""
    queued_s: float
    """Due since -> given to the model."""
    latency_s: float
    """Due since -> now."""
    in_time: bool
    now_ns: int


class JudgeThreads:
    """Runs one thread per judge; each judge is used by its own thread only.

    judges: as many as requests may be in flight, all of one model. batch: questions per request.
    """

    def __init__(
        self, judges: Sequence[Judge], *, batch: int = 1, order: Order = earliest_deadline
    ) -> None:
        self.model = judges[0].model
        self._queue: JudgementQueue[JudgementRequest] = JudgementQueue(order)
        self._changed = threading.Condition()
        self._busy_since_ns: dict[int, int] = {}
        self._open = True
        self._batch = batch
        self._threads = [
            threading.Thread(target=self._work, args=(judge,), name=f"judge {i}", daemon=True)
            for i, judge in enumerate(judges)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, requester: Requester, request: JudgementRequest, slo_ns: int) -> None:
        """From any thread; a request that still waits for the same answer is replaced."""
        with self._changed:
            self._queue.put(requester, request, time.monotonic_ns(), slo_ns)
            self._changed.notify()

    def forget(self, requester: Requester) -> None:
        """If it waits it is asked no more."""
        with self._changed:
            self._queue.forget(requester)

    def close(self) -> None:
        """Nothing waiting is asked any more. A model that hangs is left to the process's end."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        until = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    @property
    def broken(self) -> bool:
        """A thread has ended although none was closed: a bug; it judges nothing any more."""
        return self._open and not all(thread.is_alive() for thread in self._threads)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        return len(self._busy_since_ns)

    def replaced(self, component: str) -> int:
        """Pictures that a newer one took the place of."""
        return self._queue.replaced[component]

    def busy_s(self) -> float:
        """How long the oldest request has been with the model; 0 while it is idle."""
        since = min(tuple(self._busy_since_ns.values()), default=None)
        return 0.0 if since is None else (time.monotonic_ns() - since) / 1e9

    def _work(self, judge: Judge) -> None:
        me = threading.get_ident()
        while taken := self._next():
            asked_ns = self._busy_since_ns[me] = time.monotonic_ns()
            outcomes = _judged(judge, taken, asked_ns)
            now_ns = time.monotonic_ns()
            with self._changed:
                del self._busy_since_ns[me]
                for one in taken:
                    self._queue.settle(one)
                self._changed.notify_all()
            for one, (verdict, failure, message) in zip(taken, outcomes, strict=True):
                one.subject.on_result(
                    JudgementResult(
                        one.subject,
                        verdict,
                        failure,
                        message,
                        queued_s=(asked_ns - one.first_ns) / 1e9,
                        latency_s=(now_ns - one.first_ns) / 1e9,
                        in_time=now_ns <= one.due_ns,
                        now_ns=now_ns,
                    )
                )
        judge.close()

    def _next(self) -> list[Obligation[JudgementRequest]]:
        """Waits for questions; none when the judges are closed."""
        with self._changed:
            while self._open:
                if taken := self._queue.take(time.monotonic_ns(), self._batch):
                    return taken
                self._changed.wait()
        return []


Outcome = tuple[Verdict | None, str, str]
"""The verdict, else the failure and its message."""


def _judged(
    judge: Judge, taken: Sequence[Obligation[JudgementRequest]], now_ns: int
) -> list[Outcome]:
    """One outcome per request, in order; a torn picture fails alone, a raising judge fails all.

    Two questions about one picture get the same array, so that a judge can look at it once.
    """
    outcomes: list[Outcome | None] = []
    questions: list[Question] = []
    decoded: dict[int, NDArray[np.uint8]] = {}  # by id: the requests keep their bytes alive
    for one in taken:
        request = one.subject
        try:
            for encoded in request.pictures:
                if id(encoded) not in decoded:
                    decoded[id(encoded)] = picture(encoded)
            images = tuple(decoded[id(encoded)] for encoded in request.pictures)
        except WireError as error:
            outcomes.append((None, BAD_PICTURE, str(error)))
            continue
        outcomes.append(None)
        questions.append(
            Question(
                request.kind,
                request.prompt,
                request.instruction,
                images,
                request.answers,
                Caller(*one.requester, request.task, request.workflow, request.upstream),
                max(1, one.due_ns - now_ns),
            )
        )
    answered = iter(_answers(judge, questions))
    return [next(answered) if outcome is None else outcome for outcome in outcomes]


def _answers(judge: Judge, questions: Sequence[Question]) -> list[Outcome]:
    if not questions:
        return []
    try:
        came = judge.judge(questions)
    except Exception as error:  # a judge is foreign code; whatever it does, it is no verdict
        log.exception("judge %s raised", judge.model)
        return [(None, RAISED, f"{type(error).__name__}: {error}")] * len(questions)
    if len(came) != len(questions):
        message = f"{len(came)} answers to {len(questions)} questions"
        return [(None, RAISED, message)] * len(questions)
    return [_checked(question, one) for question, one in zip(questions, came, strict=True)]


def _checked(question: Question, came: object) -> Outcome:
    """What came for one question, if it can be believed."""
    if not isinstance(came, Verdict):
        code, message = getattr(came, "code", RAISED), getattr(came, "message", f"{came!r:.200}")
        return None, str(code), message
    if came.answer not in question.answers:
        return None, "bad_answer", f"{came.answer!r:.80} is none of {question.answers}"
    odds = [] if came.probabilities is None else list(came.probabilities.values())
    if not all(math.isfinite(p) and 0 <= p <= 1 for p in odds):
        return None, BAD_PROBABILITY, f"probabilities {came.probabilities!r:.200}"
    return came, "", ""
