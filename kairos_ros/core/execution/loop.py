"""The asynchronous generate-execute loop of one robot: events in, effects out, no I/O, no clock.

Round j+1 is requested while the actions of round j are executed. A chunk belongs to the observation
it was made from: actions executed since then are skipped in it by index. When the buffer is empty
the arm holds; nothing a server sends, or fails to send, can make it do anything else.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kairos_ros.core.exchange import (
    Actions,
    Answer,
    Execution,
    Refetch,
    Refusal,
    Request,
    RequestId,
    no_actions,
)
from kairos_ros.core.execution.early_request import Surprise
from kairos_ros.core.execution.effects import Act, Effect, Finished, Hold, Observe, Send
from kairos_ros.core.execution.latency import LatencyEstimate, lead_actions
from kairos_ros.core.execution.run import Attempt, Chunk, Run, unwanted
from kairos_ros.core.execution.server_binding import ServerBinding
from kairos_ros.core.execution.task import Task

Approve = Callable[[np.ndarray], np.ndarray | None]
"""Action guard: the action to execute, float32 [D], or None when it must not reach the arm."""

MOST_PERIODS = 3
"""Control periods that the loop may always stand still for."""


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
    max_pause_ns: int = 500_000_000
    """Actions are not executed any more once the loop has stood still for longer than this, and
    than `MOST_PERIODS` control periods."""


class Loop:
    """State machine; call it from one thread. Events: the methods that take the time."""

    def __init__(
        self,
        config: LoopConfig,
        latency: LatencyEstimate,
        binding: ServerBinding | None = None,
    ) -> None:
        """binding: which server is asked; None: whoever answers, where there is one server only."""
        self.config = config
        self.latency = latency
        self.binding = binding
        self.dropped: Counter[str] = Counter()
        """Answers not used, by reason, since the start of the session."""
        self.silences = 0
        """Requests that had to be repeated because nothing came back, in the session."""
        self.executed = 0
        """Actions executed in the session."""
        self.pauses = 0
        """Times that the loop stood still in a task for too long, in the session."""
        self.paused_ns = 0
        """How long the last of them lasted."""
        self.request_period_ns = 0
        """Least time between the first requests of two rounds, as its server told it last."""
        self._asked_ns: int | None = None
        """When the first request of the newest round was sent, in the session."""
        self._ticked_ns = 0
        self._observed_ns = 0
        self._run: Run | None = None

    @property
    def task(self) -> Task | None:
        return self._run.task if self._run else None

    def start(self, task: Task, now_ns: int) -> None:
        """Begins a task; the next tick sends its first request. One task at a time."""
        if self._run is not None:
            raise ValueError(f"task {self._run.task.id} is still running")
        self._run = Run(task, started_ns=now_ns, holding_since_ns=now_ns)
        self._ticked_ns = now_ns
        if self.binding is not None:
            self.binding.begin(task.policy)

    def observed(self, taken_ns: int) -> None:
        """The observation of the newest `Send` shows the cell at this time."""
        self._observed_ns = taken_ns

    def was_reset(self, now_ns: int) -> None:
        """The body was reset until now: that the loop stood still meanwhile is no pause."""
        self._ticked_ns = now_ns
        if self._run is not None:
            self._run.kept = 0

    def tick(
        self, now_ns: int, approve: Approve, *, ask: bool = True, move: bool = True
    ) -> list[Effect]:
        """One control period. Ends with exactly one `Act` or `Hold`; `Act` passed `approve`.

        Observations, for a `Send` or an `Observe`, are taken before that motion. Without `ask`
        nothing is sent, without `move` the arm holds. After a pause it drops what it was about to
        do and asks anew.
        """
        run = self._run
        self._notice_pause(run, now_ns)
        outcome, known = self._look_for_server(run, now_ns)
        if run is None:
            return [Hold()]
        if outcome := run.limit_reached(now_ns) or outcome:
            return [self.finish(outcome, now_ns), Hold()]
        run.switch()
        ask = ask and known
        effects: list[Effect] = self._observe(run)
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
        match answer.body:
            case Refetch():
                return [self._send(run, now_ns)]
            case Refusal() as refusal:
                run.refusals += 1
                if refusal.retry_after_ns <= 0:
                    return [self.finish(f"refused: {refusal.reason}", now_ns)]
                run.refused = True
                run.resend_ns = now_ns + refusal.retry_after_ns
            case Actions() as body:
                self._serve(run, answer.id, body, now_ns)
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
        if self.binding is not None:
            self.binding.end()
        return Finished(run.result(outcome, now_ns, self.config.period_ns))

    def surprised(self, surprise: Surprise, settle: int | None) -> bool:
        """How far the arm departs from its actions. Returns whether it asks early, therefore; no
        `settle`: it shall not."""
        return self._run is not None and self._run.surprised(surprise, settle)

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
    def upcoming(self) -> np.ndarray:
        """float32 [L, D]: the actions left of the running chunk; [0, 0] without one."""
        chunk = self._run.chunk if self._run else None
        return no_actions() if chunk is None else chunk.actions[chunk.index :]

    @property
    def task_executed(self) -> int:
        """Actions executed in the running task; 0 without one."""
        return self._run.executed if self._run else 0

    def is_late(self, now_ns: int) -> bool:
        """The loop has stood still for too long since its last tick: what that decided was meant
        for a time that is over. The next tick notices the pause."""
        return now_ns - self._ticked_ns > self._longest_pause_ns

    def was_late(self) -> None:
        """The action that the last tick decided was not executed, since it was late."""
        if self._run is not None and self._run.chunk is not None:
            self._run.uncount_action(self._run.chunk)
            self.executed -= 1

    @property
    def _longest_pause_ns(self) -> int:
        return max(self.config.max_pause_ns, MOST_PERIODS * self.config.period_ns)

    def _notice_pause(self, run: Run | None, now_ns: int) -> None:
        """What was meant for a time that is over is not executed: the world went on without us."""
        limit_ns = self._longest_pause_ns
        stood_ns, self._ticked_ns = now_ns - self._ticked_ns, now_ns
        if stood_ns <= limit_ns:
            return
        if self.binding is not None:
            self.binding.resumed(now_ns)
        if run is None:
            return
        self.pauses, self.paused_ns = self.pauses + 1, stood_ns
        run.kept = 0
        # A body that takes long to observe is not asked again and again: what it observed is fresh.
        run.stop(keep_round=now_ns - self._observed_ns <= limit_ns)

    def _look_for_server(self, run: Run | None, now_ns: int) -> tuple[str, bool]:
        """The outcome that the task must end with, if any; whether there is a server to ask."""
        if self.binding is None:
            return "", True
        another, outcome = self.binding.look(now_ns)
        if another:
            self.request_period_ns = 0
        if another and run is not None:
            run.refused, run.resend_ns = False, now_ns
        return outcome, bool(self.binding.bound)

    def _unusable(self, run: Run | None, answer: Answer) -> str:
        """Why an answer is of no use; empty if it is."""
        if self.binding is not None and not self.binding.is_from(answer.server):
            return "other_server"
        robot, session = self.config.robot, self.config.session
        if reason := unwanted(answer, robot, session, run):
            return reason
        if not isinstance(answer.body, Actions):
            return ""
        if self.binding is not None and not self.binding.is_of(answer.body.policy):
            return "other_policy"
        actions = answer.body.actions
        if actions.ndim != 2 or actions.shape[1] != self.config.action_dim or not len(actions):
            return "malformed"
        return "" if np.isfinite(actions).all() else "not_finite"

    def _serve(self, run: Run, answered: RequestId, body: Actions, now_ns: int) -> None:
        attempt = run.attempts[answered.attempt]
        if self.binding is not None:
            self.binding.taken(body.policy)
        self.latency.measured(now_ns - attempt.sent_ns, body.server_ns, body.engine_latency_ns)
        self.request_period_ns = body.request_period_ns
        run.answered(len(body.actions), now_ns)
        skipped = run.switches_at - attempt.executed
        if skipped >= run.horizon:
            self._drop("too_late")
            return
        run.next = Chunk(
            answered.round, body.actions, attempt.executed, record=len(run.latency_ns) - 1
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
        if limit and run.switches_at >= limit:
            return False
        if run.early is None and run.remaining > self._lead(run):
            return False
        if self._asked_ns is not None and now_ns < self._asked_ns + self.request_period_ns:
            return False
        self._asked_ns = now_ns
        run.next_round()
        return True

    def _lead(self, run: Run) -> int:
        config = self.config
        expected_ns = self.latency.expected_ns
        return lead_actions(expected_ns, config.margin_ns, config.period_ns, run.horizon)

    def _observe(self, run: Run) -> list[Effect]:
        """A policy that reads several observations reads those of the last control periods, exactly
        one apart: they are taken in every period, since a refetch comes at any time. Of one with a
        `keyframe_stride` those stay that were taken last before an action which is a multiple."""
        policy = self.binding.policy if self.binding else None
        if policy is not None:
            run.reads(policy.observations, policy.keyframe_stride)
        if run.observations == 1:
            run.kept = 0
            return []
        stride, at = run.keyframe_stride, run.observed_at
        instead = bool(run.kept and stride and (at == run.executed or at % stride))
        earlier = min(run.kept - instead, run.observations - 1)
        run.kept, run.observed_at = earlier + 1, run.executed
        return [Observe(earlier, instead)]

    def _send(self, run: Run, now_ns: int) -> Send:
        """The current round, with a fresh observation or that of this control period."""
        since = run.executed - run.observed_at if run.kept else 0
        if run.early is not None:
            run.early.until = run.executed + self._lead(run)
        execution = self.execution(now_ns)
        if since:  # it is asked for between two periods: tell where the chunk was then
            execution = replace(execution, chunk_index=execution.chunk_index - since)
        run.attempts.append(Attempt(now_ns, run.executed - since))
        run.awaiting = True
        run.refused = False
        doublings = min(run.silences, 32)
        run.resend_ns = now_ns + min(
            self.config.timeout_ns << doublings, self.config.timeout_max_ns
        )
        attempt = len(run.attempts) - 1
        task, config = run.task, self.config
        return Send(
            Request(
                RequestId(config.robot, config.session, task.id, run.round, attempt),
                instruction=self.instruction,
                kind=task.kind,
                horizon_policy=task.horizon_policy,
                seed=task.seed,
                execution=execution,
                server=self.binding.bound if self.binding else "",
                committed=run.committed(since),
                policy=self.binding.asks_for if self.binding else task.policy,
                task_actions=run.executed - since if run.keyframe_stride else 0,
                executed=run.last_done(since),
            ),
            run.observations,
            not run.keyframe_stride,
        )

    def _move(self, run: Run, now_ns: int, approve: Approve) -> Act | Hold:
        chunk = run.chunk
        if chunk is not None and chunk.remaining:
            action = approve(chunk.actions[chunk.index])
            if action is not None:
                run.count_action(chunk, now_ns)
                if run.keyframe_stride:
                    run.done.append(action)
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
