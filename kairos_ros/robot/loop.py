"""The asynchronous generate-execute loop of one robot: events in, effects out, no I/O, no clock.

Round j+1 is requested while the actions of round j are executed. A chunk belongs to the observation
it was made from: actions executed since then are skipped in it by index. When the buffer is empty
the arm holds; nothing a server sends, or fails to send, can make it do anything else.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kairos_ros.robot.exchange import (
    Answer,
    AnswerKind,
    Execution,
    Request,
    Task,
    TaskResult,
)
from kairos_ros.robot.latency import LatencyEstimate, lead_actions

Approve = Callable[[np.ndarray], np.ndarray | None]
"""Action guard: the action to execute, float32 [D], or None when it must not reach the arm."""


@dataclass(frozen=True, slots=True)
class LoopConfig:
    robot: str
    session: str
    action_dim: int
    period_ns: int
    """Control period."""
    margin_ns: int
    """Added to the expected latency when the next request is timed."""
    timeout_ns: int
    """Silence after which a request is sent again; doubles while it lasts."""
    timeout_max_ns: int


@dataclass(frozen=True, slots=True)
class Send:
    """Observe and send this request, now."""

    request: Request


@dataclass(frozen=True, slots=True)
class Act:
    """Execute this approved action in this control period."""

    action: np.ndarray


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold position for this control period."""


@dataclass(frozen=True, slots=True)
class Finished:
    result: TaskResult


Effect = Send | Act | Hold | Finished


@dataclass(slots=True)
class _Attempt:
    sent_ns: int
    executed: int  # actions executed when its observation was taken


@dataclass(slots=True)
class _Chunk:
    round: int
    actions: np.ndarray
    observed_at: int  # actions executed when its observation was taken
    record: int  # index into _Run.latency_ns and _Run.executed_of
    index: int = 0
    executed: int = 0
    first_ns: int = 0
    last_ns: int = 0

    @property
    def remaining(self) -> int:
        return len(self.actions) - self.index


@dataclass(slots=True)
class _Run:
    task: Task
    started_ns: int
    holding_since_ns: int | None
    chunk: _Chunk | None = None
    next: _Chunk | None = None
    round: int = 0
    attempts: list[_Attempt] = field(default_factory=list)  # of the current round
    awaiting: bool = False  # the current round has no chunk yet
    resend_ns: int = 0  # when to send the round again, by silence or after a refusal
    refused: bool = False  # the newest attempt was refused, resend_ns is its retry
    silences: int = 0
    horizon: int = 0  # of the newest chunk
    executed: int = 0
    stalled_ns: int = 0
    first_ns: int | None = None
    last_ns: int = 0
    latency_ns: list[int] = field(default_factory=list)
    executed_of: list[int] = field(default_factory=list)
    refusals: int = 0
    dropped: int = 0
    guarded: int = 0

    @property
    def remaining(self) -> int:
        return self.chunk.remaining if self.chunk else 0


class Loop:
    """State machine; call it from one thread. Events: the methods that take the time."""

    def __init__(self, config: LoopConfig, latency: LatencyEstimate) -> None:
        self.config = config
        self.latency = latency
        self.dropped: Counter[str] = Counter()
        """Answers not used, by reason, since the start of the session."""
        self.silences = 0
        """Requests that had to be repeated because nothing came back, in the session."""
        self.executed = 0
        """Actions executed in the session."""
        self._run: _Run | None = None

    @property
    def task(self) -> Task | None:
        return self._run.task if self._run else None

    def start(self, task: Task, now_ns: int) -> None:
        """Begins a task; the next tick sends its first request. One task at a time."""
        if self._run is not None:
            raise ValueError(f"task {self._run.task.id} is still running")
        self._run = _Run(task, started_ns=now_ns, holding_since_ns=now_ns)

    def tick(self, now_ns: int, approve: Approve) -> list[Effect]:
        """One control period. Ends with exactly one `Act` or `Hold`; `Act` passed `approve`.

        An observation for a `Send` is taken before that motion.
        """
        run = self._run
        if run is None:
            return [Hold()]
        if outcome := _limit_reached(run, now_ns):
            return [self.finish(outcome, now_ns), Hold()]
        if run.remaining == 0 and run.next is not None:
            run.chunk, run.next = run.next, None
            run.chunk.index = run.executed - run.chunk.observed_at
        effects: list[Effect] = []
        if self._request_is_due(run, now_ns):
            effects.append(self._send(run, now_ns))
        effects.append(self._move(run, now_ns, approve))
        return effects

    def receive(self, answer: Answer, now_ns: int) -> list[Effect]:
        """An answer arrived at `now_ns`. What does not belong here is dropped and counted."""
        run = self._run
        if reason := self._foreign(answer) or (run and self._unusable(run, answer)):
            self._drop(reason)
            return []
        assert run is not None  # an answer without a task is foreign
        run.silences = 0
        match answer.kind:
            case AnswerKind.REFETCH:
                return [self._send(run, now_ns)]
            case AnswerKind.REFUSED:
                run.refusals += 1
                if answer.retry_after_ns <= 0:
                    return [self.finish(f"refused: {answer.reason}", now_ns)]
                run.refused = True
                run.resend_ns = now_ns + answer.retry_after_ns
            case AnswerKind.ACTIONS:
                self._serve(run, answer, now_ns)
        return []

    def server_found(self, now_ns: int) -> None:
        """A server appeared that cannot know the pending request: the next tick sends it again."""
        run = self._run
        if run is not None and run.awaiting and not run.refused:
            run.resend_ns = now_ns

    def finish(self, outcome: str, now_ns: int) -> Finished:
        """Ends the task; the outcome `succeeded` is the only success."""
        run = self._run
        if run is None:
            raise ValueError("no task is running")
        self._run = None
        ended_ns = run.last_ns if run.first_ns is not None else now_ns
        return Finished(
            TaskResult(
                task=run.task,
                success=outcome == "succeeded",
                outcome=outcome,
                duration_ns=ended_ns - run.started_ns,
                stalled_ns=_stalled_ns(run, now_ns),
                first_wait_ns=(now_ns if run.first_ns is None else run.first_ns) - run.started_ns,
                actions=run.executed,
                round_latency_ns=tuple(run.latency_ns),
                round_executed=tuple(run.executed_of),
                refusals=run.refusals,
                dropped=run.dropped,
                guarded=run.guarded,
            )
        )

    def note_guarded(self) -> None:
        """The guard changed or refused an action of the running task."""
        if self._run is not None:
            self._run.guarded += 1

    def execution(self, now_ns: int) -> Execution:
        """What the arm is doing at `now_ns`; all zero without a task."""
        run = self._run
        if run is None:
            return Execution()
        holding = run.holding_since_ns is not None
        stalled_ns = _stalled_ns(run, now_ns)
        chunk = run.chunk
        if chunk is None or chunk.executed == 0:
            return Execution(
                round=chunk.round if chunk else 0,
                holding=holding,
                remaining=run.remaining,
                chunk_index=chunk.index if chunk else 0,
                stalled_ns=stalled_ns,
            )
        ended_ns = chunk.last_ns + self.config.period_ns
        return Execution(
            round=chunk.round,
            started=True,
            holding=holding,
            started_ago_ns=max(0, now_ns - chunk.first_ns),
            ended_ago_ns=0 if chunk.remaining else max(0, now_ns - ended_ns),
            executed=chunk.executed,
            remaining=chunk.remaining,
            chunk_index=chunk.index,
            stalled_ns=stalled_ns,
        )

    @property
    def horizon(self) -> int:
        """Actions of the running chunk, counted from its observation; 0 without one."""
        return len(self._run.chunk.actions) if self._run and self._run.chunk else 0

    @property
    def task_executed(self) -> int:
        """Actions executed in the running task; 0 without one."""
        return self._run.executed if self._run else 0

    def _foreign(self, answer: Answer) -> str:
        """Why an answer is not for the running task; empty if it is."""
        if answer.robot != self.config.robot:
            return "other_robot"
        if answer.session != self.config.session:
            return "other_session"
        if self._run is None:
            return "no_task"
        return "" if answer.task == self._run.task.id else "other_task"

    def _unusable(self, run: _Run, answer: Answer) -> str:
        """Why an answer of this task is of no use; empty if it is."""
        if answer.round < run.round:
            return "old_round"
        if answer.round > run.round or answer.attempt >= len(run.attempts):
            return "never_requested"
        if not run.awaiting:
            return "repeated"
        if answer.kind is not AnswerKind.ACTIONS:
            newest = answer.attempt == len(run.attempts) - 1 and not run.refused
            return "" if newest else "repeated"
        actions = answer.actions
        if actions is None or actions.ndim != 2 or actions.shape[1] != self.config.action_dim:
            return "malformed"
        if len(actions) == 0:
            return "malformed"
        return "" if np.isfinite(actions).all() else "not_finite"

    def _serve(self, run: _Run, answer: Answer, now_ns: int) -> None:
        attempt = run.attempts[answer.attempt]
        self.latency.measured(now_ns - attempt.sent_ns, answer.server_ns, answer.engine_latency_ns)
        run.awaiting = False
        run.horizon = len(answer.actions)
        run.latency_ns.append(now_ns - run.attempts[0].sent_ns)
        run.executed_of.append(0)
        skipped = run.executed + run.remaining - attempt.executed
        if skipped >= run.horizon:
            self._drop("too_late")
            return
        run.next = _Chunk(
            answer.round, answer.actions, attempt.executed, record=len(run.latency_ns) - 1
        )

    def _request_is_due(self, run: _Run, now_ns: int) -> bool:
        if run.awaiting:
            if now_ns < run.resend_ns:
                return False
            if not run.refused:
                run.silences += 1
                self.silences += 1
            return True
        if run.next is not None:
            return False
        limit = run.task.max_actions
        if limit and run.executed + run.remaining >= limit:
            return False
        lead = lead_actions(
            self.latency.expected_ns, self.config.margin_ns, self.config.period_ns, run.horizon
        )
        if run.remaining > lead:
            return False
        run.round += 1
        run.attempts.clear()
        run.silences = 0
        return True

    def _send(self, run: _Run, now_ns: int) -> Send:
        """The current round, with a fresh observation."""
        run.attempts.append(_Attempt(now_ns, run.executed))
        run.awaiting = True
        run.refused = False
        doublings = min(run.silences, 32)
        run.resend_ns = now_ns + min(
            self.config.timeout_ns << doublings, self.config.timeout_max_ns
        )
        attempt = len(run.attempts) - 1
        return Send(Request(run.task, run.round, attempt, self.execution(now_ns)))

    def _move(self, run: _Run, now_ns: int, approve: Approve) -> Act | Hold:
        chunk = run.chunk
        if chunk is not None and chunk.remaining:
            action = approve(chunk.actions[chunk.index])
            if action is not None:
                self._count_action(run, chunk, now_ns)
                return Act(action)
            chunk.actions = chunk.actions[: chunk.index]
        if run.holding_since_ns is None:
            run.holding_since_ns = now_ns
        return Hold()

    def _count_action(self, run: _Run, chunk: _Chunk, now_ns: int) -> None:
        if run.first_ns is None:
            run.first_ns = now_ns
        if chunk.executed == 0:
            chunk.first_ns = now_ns
        run.last_ns = chunk.last_ns = now_ns
        chunk.index += 1
        chunk.executed += 1
        run.executed_of[chunk.record] += 1
        run.executed += 1
        self.executed += 1
        run.stalled_ns = _stalled_ns(run, now_ns)
        run.holding_since_ns = None

    def _drop(self, reason: str) -> None:
        self.dropped[reason] += 1
        if self._run is not None:
            self._run.dropped += 1


def _limit_reached(run: _Run, now_ns: int) -> str:
    """The outcome that ends the task now; empty while it may go on."""
    if run.task.max_actions and run.executed >= run.task.max_actions:
        return "max_actions"
    if run.task.max_duration_ns and now_ns - run.started_ns >= run.task.max_duration_ns:
        return "max_duration"
    return ""


def _stalled_ns(run: _Run, now_ns: int) -> int:
    since = now_ns if run.holding_since_ns is None else run.holding_since_ns
    return run.stalled_ns + max(0, now_ns - since)
