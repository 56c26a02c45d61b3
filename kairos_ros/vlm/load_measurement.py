"""How long a judge or planner takes to answer under load: measured as judging nodes ask it."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.errors import PolicyError
from kairos_ros.core.load_profile import RATES, Floats, Load, load_of
from kairos_ros.core.pipeline import Component
from kairos_ros.vlm.embedded.planner import PLAN, PLAN_PROMPT
from kairos_ros.vlm.judge import Failure, FailureCode, Judge, Question
from kairos_ros.vlm.questions import (
    DONE,
    FAILED,
    ONGOING,
    SAFE,
    SAFETY,
    SAFETY_PROMPT,
    TASK_STATE,
    TASK_STATE_PROMPT,
    UNSAFE,
)

LEAST_QUESTIONS = 10
"""Measured per setting, however long they take."""
LATE = (FailureCode.TIMEOUT, FailureCode.OVERLOADED)
"""Failures that are a latency like others, of at least as long as the judge was waited for."""
Advance = Callable[[str], None]
"""Told what is measured next."""


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """Latency against requests at once, and against request rate."""

    sizes: tuple[int, ...]
    service_s: tuple[float, ...]
    load: Load
    failed: int
    """Questions that were not answered in the judge's time."""


def standing_question(component: Component, instruction: str, px: int, seed: int) -> Question:
    """What a node of this component asks, about a picture that was made up."""
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    image = np.kron(coarse, np.ones((-(-px // 12),) * 2 + (1,), np.uint8))[:px, :px]
    match component:
        case Component.SAFETY:
            return Question(SAFETY, SAFETY_PROMPT, instruction, (image,), (SAFE, UNSAFE))
        case Component.MONITOR:
            answers = (ONGOING, DONE, FAILED)
            return Question(TASK_STATE, TASK_STATE_PROMPT, instruction, (image,), answers)
        case _:
            skills = (instruction, "wait", "return to the start")
            return Question(PLAN, PLAN_PROMPT, instruction, (image,), skills)


def measure_judge(
    new_judge: Callable[[], Judge],
    questions: Sequence[Question],
    in_flight: int,
    per_setting_s: float,
    memory_mib: float,
    advance: Advance,
) -> MeasuredLoad:
    """First 1, 2, 4, ... requests at once, each answered before the next; then 10 % to 100 % of
    the most that gave, at random times.

    Args:
        new_judge: one per request in flight, because a judge is used by one thread.
        questions: are asked in turn.
        per_setting_s: for each number at once, and each rate.

    Raises PolicyError for a question that the judge cannot answer at all.
    """
    pool = _Pool([new_judge() for _ in range(in_flight)], questions)
    try:
        advance("warming up")
        pool.closed_loop(1, 0.0)
        sizes = tuple(2**i for i in range(in_flight.bit_length()) if 2**i < in_flight)
        sizes = (*sizes, in_flight)
        service, most_hz = [], 0.0
        for size in sizes:
            advance(f"{size} at once")
            latency, seconds = pool.closed_loop(size, per_setting_s)
            service.append(float(np.median(latency)))
            most_hz = max(most_hz, len(latency) / seconds)
        rates = [most_hz * (i + 1) / RATES for i in range(RATES)]
        latencies = []
        for i, rate in enumerate(rates):
            advance(f"{rate:.3g} requests/s")
            latencies.append(pool.open_loop(rate, per_setting_s, seed=i))
        return MeasuredLoad(
            sizes, tuple(service), load_of(in_flight, memory_mib, rates, latencies), pool.late
        )
    finally:
        pool.close()


class _Pool:
    """Threads with a judge each."""

    def __init__(self, judges: Sequence[Judge], questions: Sequence[Question]) -> None:
        self._judges, self._questions = judges, questions
        self._threads = ThreadPoolExecutor(len(judges))
        self._lock = threading.Lock()
        self._asked = 0
        self.late = 0

    def close(self) -> None:
        self._threads.shutdown()
        for judge in self._judges:
            judge.close()

    def closed_loop(self, size: int, seconds: float) -> tuple[Floats, float]:
        """Latencies, and how long it took."""
        began = time.perf_counter()

        def asker(judge: Judge) -> list[float]:
            found: list[float] = []
            while time.perf_counter() - began < seconds or len(found) < LEAST_QUESTIONS / size:
                start = time.perf_counter()
                self._ask(judge)
                found.append(time.perf_counter() - start)
            return found

        found = [s for one in self._threads.map(asker, self._judges[:size]) for s in one]
        return np.array(found), time.perf_counter() - began

    def open_loop(self, rate_hz: float, seconds: float, seed: int) -> Floats:
        """Latencies from the moment at which a question was due, whoever was free for it."""
        count = max(LEAST_QUESTIONS, round(rate_hz * seconds))
        due = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_hz, count)).tolist()
        waiting: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        began = time.perf_counter()

        def answerer(judge: Judge) -> list[float]:
            found = []
            while (at := waiting.get()) is not None:
                self._ask(judge)
                found.append(time.perf_counter() - began - at)
            return found

        answers = [self._threads.submit(answerer, judge) for judge in self._judges]
        try:
            for at in due:
                time.sleep(max(0.0, began + at - time.perf_counter()))
                waiting.put(at)
        finally:
            for _ in self._judges:
                waiting.put(None)
        return np.array([s for one in answers for s in one.result()])

    def _ask(self, judge: Judge) -> None:
        with self._lock:
            question = self._questions[self._asked % len(self._questions)]
            self._asked += 1
        (outcome,) = judge.judge([question])
        if isinstance(outcome, Failure):
            if outcome.code not in LATE:
                raise PolicyError(f"{judge.model}: {outcome.code}: {outcome.message}")
            with self._lock:
                self.late += 1
