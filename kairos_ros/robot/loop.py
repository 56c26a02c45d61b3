"""The asynchronous generate-execute loop of one robot: events in, effects out, no I/O, no clock.

Round j+1 is requested while the actions of round j are executed. A chunk belongs to the observation
it was made from: actions executed since then are skipped in it by index. When the buffer is empty
the arm holds; nothing a server sends, or fails to send, can make it do anything else.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kairos_ros.robot.answer_check import unwanted
from kairos_ros.robot.exchange import (
    Answer,
    AnswerKind,
    Execution,
    Request,
    Task,
    TaskResult,
)
from kairos_ros.robot.latency import LatencyEstimate, lead_actions
from kairos_ros.robot.run import Attempt, Chunk, Run

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
        self._run: Run | None = None

    @property
    def task(self) -> Task | None:
        return self._run.task if self._run else None

    def start(self, task: Task, now_ns: int) -> None:
        """Begins a task; the next tick sends its first request. One task at a time."""
        if self._run is not None:
            raise ValueError(f"task {self._run.task.id} is still running")
        self._run = Run(task, started_ns=now_ns, holding_since_ns=now_ns)

    def tick(
        self, now_ns: int, approve: Approve, *, ask: bool = True, move: bool = True
    ) -> list[Effect]:
        """One control period. Ends with exactly one `Act` or `Hold`; `Act` passed `approve`.

        An observation for a `Send` is taken before that motion. Without `ask` nothing is sent,
        without `move` the arm holds.
        """
        run = self._run
        if run is None:
            return [Hold()]
        if outcome := run.limit_reached(now_ns):
            return [self.finish(outcome, now_ns), Hold()]
        run.switch()
        effects: list[Effect] = []
        if ask and self._request_is_due(run, now_ns):
            effects.append(self._send(run, now_ns))
        effects.append(self._move(run, now_ns, approve) if move else self._hold(run, now_ns))
        return effects

    def receive(self, answer: Answer, now_ns: int) -> list[Effect]:
        """An answer arrived at `now_ns`. What does not belong here is dropped and counted."""
        run = self._run
        if reason := self._unusable(run, answer):
            self._drop(reason)
            return []
        assert run is not None  # an answer without a task is not wanted
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

    def stop(self, *, keep_round: bool = False) -> None:
        """Drops every buffered action. The awaited round is abandoned, too, unless it is kept."""
        if self._run is not None:
            self._run.stop(keep_round=keep_round)

    def instruct(self, plan: str) -> None:
        """The requests that follow carry this instruction instead of the task's own."""
        if self._run is not None:
            self._run.plan = plan

    def ask_again(self, now_ns: int) -> None:
        """The next tick repeats the pending request, unless the server said when to retry."""
        run = self._run
        if run is not None and run.awaiting and not run.refused:
            run.resend_ns = now_ns

    def finish(self, outcome: str, now_ns: int) -> Finished:
        """Ends the task; the outcome `succeeded` is the only success."""
        run = self._run
        if run is None:
            raise ValueError("no task is running")
        self._run = None
        return Finished(run.result(outcome, now_ns, self.config.period_ns))

    def note_guarded(self) -> None:
        """The guard changed or refused an action of the running task."""
        if self._run is not None:
            self._run.guarded += 1

    def execution(self, now_ns: int) -> Execution:
        """What the arm is doing at `now_ns`; all zero without a task."""
        return self._run.execution(now_ns, self.config.period_ns) if self._run else Execution()

    @property
    def awaiting(self) -> bool:
        """A request is without an answer."""
        return self._run is not None and self._run.awaiting

    @property
    def instruction(self) -> str:
        """What the requests carry: the newest plan, else the task's own; empty without a task."""
        return (self._run.plan or self._run.task.instruction) if self._run else ""

    @property
    def horizon(self) -> int:
        """Actions of the running chunk, counted from its observation; 0 without one."""
        return len(self._run.chunk.actions) if self._run and self._run.chunk else 0

    @property
    def task_executed(self) -> int:
        """Actions executed in the running task; 0 without one."""
        return self._run.executed if self._run else 0

    def _unusable(self, run: Run | None, answer: Answer) -> str:
        """Why an answer is of no use; empty if it is."""
        brings = answer.kind is AnswerKind.ACTIONS
        robot, session = self.config.robot, self.config.session
        if reason := unwanted(answer, robot, session, run, actions=brings):
            return reason
        if not brings:
            return ""
        actions = answer.actions
        if actions is None or actions.ndim != 2 or actions.shape[1] != self.config.action_dim:
            return "malformed"
        if len(actions) == 0:
            return "malformed"
        return "" if np.isfinite(actions).all() else "not_finite"

    def _serve(self, run: Run, answer: Answer, now_ns: int) -> None:
        attempt = run.attempts[answer.attempt]
        self.latency.measured(now_ns - attempt.sent_ns, answer.server_ns, answer.engine_latency_ns)
        run.awaiting = False
        run.horizon = len(answer.actions)
        run.latency_ns.append(now_ns - run.attempts[0].sent_ns)
        run.executed_of.append(0)
        run.moved_of.append(None)
        skipped = run.executed + run.remaining - attempt.executed
        if skipped >= run.horizon:
            self._drop("too_late")
            return
        run.next = Chunk(
            answer.round, answer.actions, attempt.executed, record=len(run.latency_ns) - 1
        )

    def _request_is_due(self, run: Run, now_ns: int) -> bool:
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
        run.abandoned = False
        run.attempts.clear()
        run.silences = 0
        return True

    def _send(self, run: Run, now_ns: int) -> Send:
        """The current round, with a fresh observation."""
        run.attempts.append(Attempt(now_ns, run.executed))
        run.awaiting = True
        run.refused = False
        doublings = min(run.silences, 32)
        run.resend_ns = now_ns + min(
            self.config.timeout_ns << doublings, self.config.timeout_max_ns
        )
        attempt = len(run.attempts) - 1
        task = replace(run.task, instruction=self.instruction)
        return Send(Request(task, run.round, attempt, self.execution(now_ns)))

    def _move(self, run: Run, now_ns: int, approve: Approve) -> Act | Hold:
        chunk = run.chunk
        if chunk is not None and chunk.remaining:
            action = approve(chunk.actions[chunk.index])
            if action is not None:
                run.count_action(chunk, now_ns)
                self.executed += 1
                return Act(action)
            chunk.actions = chunk.actions[: chunk.index]
        return self._hold(run, now_ns)

    def _hold(self, run: Run, now_ns: int) -> Hold:
        if run.holding_since_ns is None:
            run.holding_since_ns = now_ns
        return Hold()

    def _drop(self, reason: str) -> None:
        self.dropped[reason] += 1
        if self._run is not None:
            self._run.dropped += 1
