"""GPUs in virtual time: System 1 behind the serving node's own dispatcher, the others by requests
that join and leave."""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable

import numpy as np

from kairos_ros.core.exchange import Announcement, Answer, Request, RequestId
from kairos_ros.core.load_profile import LoadProfile
from kairos_ros.core.profile import EngineProfile
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.serving.batching import Effect, Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.options import SECOND_NS, ServingOptions
from kairos_ros.transport.messages import EngineDescription, InferResult

At = Callable[[float, Callable[[float], None]], None]
"""Calls a function at a time, in s."""
Answered = Callable[[float], None]
ENGINE, SESSION, TASK = "gpu", "virtual", "task"
RESULT = InferResult(np.zeros((1, 1), np.float32), np.zeros((1, 1, 1), np.float32))


class BatchServer:
    """One GPU with an action model. Requests go through a `Dispatcher`, which forms the batches."""

    def __init__(self, profile: LoadProfile, batch: int, spread: float, at: At, seed: str) -> None:
        self._profile, self._spread, self._at = profile, spread, at
        self._draw = random.Random(seed)
        self._rounds: dict[str, int] = {}
        self._waiting: dict[str, Answered] = {}
        options = ServingOptions(
            parse_scheduling("fifo"), "static:1", stale_after_ns=0,
            default_deadline_ns=1000 * SECOND_NS, batch_cap=batch,
        )  # fmt: skip
        self._dispatcher = Dispatcher(options)
        self._dispatcher.add_engine(ENGINE, "edge")
        described = EngineDescription(
            policy_id="virtual", policy_type="simulated", state_dim=0, images={}, action_dim=1,
            chunk_size=1, steps=1, instructions=None, device=profile.device, dtype="float32",
            max_batch=batch,
        )  # fmt: skip
        self._dispatcher.engine_ready(0, ENGINE, described, _engine_profile(profile, batch))

    def heartbeat(self, now_s: float, robots: tuple[str, ...]) -> None:
        """All robots are there."""
        for robot in robots:
            self._dispatcher.announce(round(now_s * 1e9), Announcement(robot, SESSION, TASK))

    def ask(self, robot: str, now_s: float, answered: Answered) -> None:
        """One request; the robot has no other under way here."""
        self._rounds[robot] = self._rounds.get(robot, 0) + 1
        self._waiting[robot] = answered
        request = Request(RequestId(robot, SESSION, TASK, self._rounds[robot], 0), "do it")
        self._do(now_s, self._dispatcher.request(round(now_s * 1e9), request))

    def _do(self, now_s: float, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Submit):
                self._compute(now_s, effect)
            else:
                self._answer(now_s, effect)

    def _compute(self, now_s: float, submit: Submit) -> None:
        size = len(submit.requests)
        took_s = self._profile.batch_s(size) * math.exp(self._spread * self._draw.gauss())

        def done(at_s: float) -> None:
            results = [RESULT] * size
            now_ns = round(at_s * 1e9)
            self._do(
                at_s, self._dispatcher.batch_done(now_ns, ENGINE, submit.batch, results, took_s)
            )

        self._at(now_s + took_s, done)

    def _answer(self, now_s: float, answer: Answer) -> None:
        self._waiting.pop(answer.id.robot)(now_s)


class SharedServer:
    """One GPU whose requests in flight advance at one speed."""

    def __init__(
        self, seconds: Callable[[int], float], most: int, spread: float, at: At, seed: str
    ) -> None:
        """seconds: what one unit of work takes while so many are in flight."""
        self._seconds, self._most, self._spread, self._at = seconds, most, spread, at
        self._draw = random.Random(seed)
        self._flight: list[tuple[float, int, Answered]] = []
        self._queue: deque[tuple[float, Answered]] = deque()
        self._done, self._now_s, self._asked, self._plan = 0.0, 0.0, 0, 0

    def ask(self, now_s: float, answered: Answered, work: float = 1.0) -> None:
        """work: of a unit."""
        self._advance(now_s)
        self._queue.append((work * math.exp(self._spread * self._draw.gauss()), answered))
        self._admit()
        self._wake()

    def _advance(self, now_s: float) -> None:
        if self._flight:
            self._done += (now_s - self._now_s) / self._seconds(len(self._flight))
        self._now_s = now_s

    def _admit(self) -> None:
        while self._queue and len(self._flight) < self._most:
            work, answered = self._queue.popleft()
            self._asked += 1
            heapq.heappush(self._flight, (self._done + work, self._asked, answered))

    def _wake(self) -> None:
        """Only the newest wake-up counts: everything that comes or goes changes the speed."""
        self._plan += 1
        if self._flight:
            plan = self._plan
            left_s = (self._flight[0][0] - self._done) * self._seconds(len(self._flight))

            def end(at_s: float) -> None:
                if plan == self._plan:
                    self._end(at_s)

            self._at(self._now_s + max(0.0, left_s), end)

    def _end(self, now_s: float) -> None:
        self._advance(now_s)
        self._done, _, answered = heapq.heappop(self._flight)
        self._admit()
        self._wake()
        answered(now_s)


def _engine_profile(profile: LoadProfile, batch: int) -> EngineProfile:
    """As an emulated engine's: at 1 and at the cap only, so that batches fill up to the cap."""
    sizes = (1, batch) if batch > 1 else (1,)
    seconds = tuple(profile.batch_s(size) for size in sizes)
    return EngineProfile(
        "virtual", profile.machine, profile.device, "float32", sizes, seconds, seconds, seconds
    )
