"""A robot without a body that lives through a recorded task: events in, effects out, no clock.

It does what `core.execution.loop.Loop` does at every control period, but computes only the periods
in which something is decided; in between it executes or holds by count. The same robot is driven in
virtual time by `simulate` and in real time over DDS.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kairos_ros.core.exchange import (
    Actions,
    Answer,
    Execution,
    Refetch,
    Refusal,
    Request,
    RequestId,
)
from kairos_ros.core.execution.latency import LatencyEstimate, lead_actions
from kairos_ros.core.execution.run import Attempt, Chunk, Run, unwanted
from kairos_ros.core.execution.task import Task
from kairos_ros.lab.sim.round_log import RoundLog
from kairos_ros.lab.sim.rules import RECORDED, Rules
from kairos_ros.recording.runs.run import CANCELED, Activity, RoundRecord, Span, TaskRecord
from kairos_ros.recording.runs.trace import Trace, TraceRound

SECOND_NS = 1_000_000_000
NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Assignment:
    """A recorded task that a robot lives through. Its trace has rounds, and they executed some."""

    id: str
    """Unique among the robot's tasks."""
    number: int
    """Position in the workload."""
    trace: Trace
    wanted_s: float = 0.0
    """When it arrived, seconds since the run began."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send this request; the robot observes what it observed in the trace."""

    request: Request
    observed: TraceRound
    """The newest recorded observation up to here."""
    ahead: int
    """Actions executed since that observation was recorded."""
    sent_ns: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The task is over."""

    task: TaskRecord
    rounds: tuple[RoundRecord, ...]
    spans: tuple[Span, ...]
    """Executing and holding, while the task ran."""


Effect = Send | Ended


class VirtualRobot:
    """State machine of one robot; call it from one thread, with times that never go back.

    Call `advance` when `next_event_ns` has come, and `receive` when an answer arrives: at the same
    instant, `receive` first. Late calls lose nothing: periods that were missed are made up, at the
    times at which they were due.
    """

    def __init__(self, name: str, session: str, rules: Rules, epoch_ns: int = 0) -> None:
        """`epoch_ns`: when the run began; records count from it."""
        self.name = name
        self.session = session
        self.rules = rules
        self.latency = LatencyEstimate(rules.initial_network_ns, rules.initial_engine_ns)
        self.dropped: Counter[str] = Counter()
        """Answers not used, by reason."""
        self.silences = 0
        """Requests repeated because nothing came back."""
        self.request_period_ns = 0
        """As `Loop.request_period_ns`."""
        self._asked_ns = -NEVER
        self._epoch_ns = epoch_ns
        self._run: Run | None = None

    @property
    def task(self) -> Task | None:
        return self._run.task if self._run else None

    def start(self, assignment: Assignment, now_ns: int) -> None:
        """Begins a task; control periods are counted from now, and the first sends a request."""
        if self._run is not None:
            raise ValueError(f"task {self._run.task.id} is still running")
        trace = assignment.trace
        task = Task(
            id=assignment.id,
            instruction=trace.instruction,
            kind=trace.kind,
            seed=trace.seed,
            max_actions=trace.actions,
        )
        self._assignment = assignment
        self._period_ns = round(SECOND_NS / trace.control_rate_hz)
        self._plan = [r for r in trace.rounds if r.horizon > 0]
        self._planned = -1
        """Index into the plan of the newest round requested."""
        self._tick = 0
        """Next control period of the task."""
        self._log: list[RoundLog] = []
        self._marks: list[tuple[int, Activity]] = [(now_ns, "holding")]
        self._run = Run(task, started_ns=now_ns, holding_since_ns=now_ns)

    def next_event_ns(self) -> int | None:
        """When `advance` has something to do next; None without a task."""
        return None if self._run is None else self._time(self._next_decision(self._run))

    def advance(self, now_ns: int) -> list[Effect]:
        """All control periods that have begun by now."""
        effects: list[Effect] = []
        while (run := self._run) is not None:
            begun = (now_ns - run.started_ns) // self._period_ns
            decision = self._next_decision(run)
            self._coast(run, min(decision, begun + 1))
            if decision > begun:
                break
            effects += self._decide(run, self._time(decision))
        return effects

    def receive(self, answer: Answer, now_ns: int) -> list[Effect]:
        """An answer arrived. What does not belong here is dropped and counted."""
        effects = self.advance(now_ns - 1)
        run = self._run
        body = answer.body
        reason = unwanted(answer, self.name, self.session, run)
        if not reason and isinstance(body, Actions):
            reason = _unusable(body)
        if reason:
            self._drop(reason)
            return effects
        assert run is not None  # an answer without a task is not wanted
        run.silences = 0
        if isinstance(body, Refetch):
            effects.append(self._send(run, now_ns))
        elif isinstance(body, Refusal):
            run.refusals += 1
            self._log[-1].refusal = body.reason
            if body.retry_after_ns <= 0:
                effects.append(self._end(run, f"refused: {body.reason}", now_ns))
            else:
                run.refused = True
                run.resend_ns = now_ns + body.retry_after_ns
        else:
            self._serve(run, answer.id, body, now_ns)
        return effects

    def cancel(self, now_ns: int, outcome: str = CANCELED) -> list[Effect]:
        """Ends the running task, if there is one, after what was due before."""
        effects = self.advance(now_ns)
        if self._run is not None:
            effects.append(self._end(self._run, outcome, now_ns))
        return effects

    def execution(self, now_ns: int) -> Execution:
        """What the arm is doing, up to the periods that were advanced to."""
        return self._run.execution(now_ns, self._period_ns) if self._run else Execution()

    def _time(self, tick: int) -> int:
        assert self._run is not None
        return self._run.started_ns + tick * self._period_ns

    def _next_decision(self, run: Run) -> int:
        """First control period, from the next one on, that does more than execute or hold."""
        tick, left = self._tick, run.remaining
        to_end = run.task.max_actions - run.executed
        first = tick + to_end if to_end <= left else NEVER
        if run.next is not None:
            first = min(first, tick + left)
        if run.awaiting:
            to_resend = -(-(run.resend_ns - run.started_ns) // self._period_ns)
            return min(first, max(tick, to_resend))
        actions = self._actions_until_due(run)
        if actions is None:
            return first
        may_ask = -(-(self._asked_ns + self.request_period_ns - run.started_ns) // self._period_ns)
        return min(first, max(tick + actions, may_ask))

    def _actions_until_due(self, run: Run) -> int | None:
        """Actions of the buffer to execute before the next round is requested, if it ever is."""
        if run.next is not None:
            return None
        left = run.remaining
        if self.rules.accounting == "replay":
            if self._planned + 1 >= len(self._plan):
                return None
            return min(left, max(0, self._plan[self._planned + 1].requested_at - run.executed))
        if run.executed + left >= run.task.max_actions:
            return None
        return max(0, left - self._lead(run))

    def _may_ask(self, now_ns: int) -> bool:
        return now_ns >= self._asked_ns + self.request_period_ns

    def _lead(self, run: Run) -> int:
        if self.rules.lead is not None:
            return self.rules.lead
        return lead_actions(
            self.latency.expected_ns, self.rules.margin_ns, self._period_ns, run.horizon
        )

    def _coast(self, run: Run, until: int) -> None:
        """Executes what is in the buffer, then holds, in the periods before `until`."""
        periods = until - self._tick
        if periods <= 0:
            return
        moves = min(periods, run.remaining)
        if moves:
            self._execute(run, moves)
        if periods > moves:
            self._hold(run, self._time(self._tick + moves))
        self._tick = until

    def _decide(self, run: Run, now_ns: int) -> list[Effect]:
        """One whole control period, as `Loop.tick`."""
        if run.executed >= run.task.max_actions:
            success = self._assignment.trace.success
            return [self._end(run, "succeeded" if success else "max_actions", now_ns)]
        run.switch()
        effects: list[Effect] = []
        if run.awaiting:
            if now_ns >= run.resend_ns:
                if not run.refused:
                    run.silences += 1
                    self.silences += 1
                effects.append(self._send(run, now_ns))
        elif self._actions_until_due(run) == 0 and self._may_ask(now_ns):
            self._begin_round(run, now_ns)
            effects.append(self._send(run, now_ns))
        if run.remaining:
            self._execute(run, 1)
        else:
            self._hold(run, now_ns)
        self._tick += 1
        return effects

    def _execute(self, run: Run, actions: int) -> None:
        """In this period and those after it."""
        chunk = run.chunk
        assert chunk is not None
        first_ns = self._time(self._tick)
        last_ns = first_ns + (actions - 1) * self._period_ns
        if run.holding_since_ns is not None:
            self._marks.append((first_ns, "executing"))
        run.count_action(chunk, first_ns)
        run.last_ns = chunk.last_ns = last_ns
        more = actions - 1
        chunk.index += more
        chunk.executed += more
        run.executed_of[chunk.record] += more
        run.moved_of[chunk.record] = (chunk.first_ns, last_ns)
        run.executed += more

    def _hold(self, run: Run, now_ns: int) -> None:
        if run.holding_since_ns is None:
            run.holding_since_ns = now_ns
            self._marks.append((now_ns, "holding"))

    def _begin_round(self, run: Run, now_ns: int) -> None:
        self._planned += 1
        replaying = self.rules.accounting == "replay"
        run.round = self._plan[self._planned].round if replaying else run.round + 1
        run.attempts.clear()
        run.silences = 0
        self._asked_ns = now_ns
        self._log.append(RoundLog(run.round, now_ns, run.executed))

    def _send(self, run: Run, now_ns: int) -> Send:
        """The current round, with a fresh observation."""
        trace = self._assignment.trace
        run.attempts.append(Attempt(now_ns, run.executed))
        run.awaiting = True
        run.refused = False
        timeout_ns = min(self.rules.timeout_ns << min(run.silences, 32), self.rules.timeout_max_ns)
        run.resend_ns = now_ns + timeout_ns
        self._log[-1].attempts += 1
        replaying = self.rules.accounting == "replay"
        observed = self._plan[self._planned] if replaying else trace.round_at(run.executed)
        ahead = 0 if replaying else max(0, run.executed - observed.observed_at)
        horizon = self.rules.horizon
        if replaying or horizon == RECORDED:
            horizon = f"static:{max(1, observed.horizon)}"
        task, attempt = run.task, len(run.attempts) - 1
        request = Request(
            RequestId(self.name, self.session, task.id, run.round, attempt),
            instruction=task.instruction,
            kind=task.kind,
            horizon_policy=horizon,
            seed=task.seed,
            execution=run.execution(now_ns, self._period_ns),
        )
        return Send(request, observed, ahead, now_ns)

    def _serve(self, run: Run, answered: RequestId, body: Actions, now_ns: int) -> None:
        attempt = run.attempts[answered.attempt]
        self.latency.measured(now_ns - attempt.sent_ns, body.server_ns, body.engine_latency_ns)
        self.request_period_ns = body.request_period_ns
        run.awaiting = False
        run.horizon = len(body.actions)
        run.latency_ns.append(now_ns - run.attempts[0].sent_ns)
        run.begin_record()
        log = self._log[-1]
        log.answered_ns, log.observed_at, log.body = now_ns, attempt.executed, body
        begins_at = run.executed + run.remaining
        observed_at, length = attempt.executed, run.horizon
        if self.rules.accounting == "replay":
            planned = self._plan[self._planned]
            observed_at = min(planned.observed_at, begins_at)
            length = begins_at - observed_at + planned.executed
        if begins_at - observed_at >= length:
            self._drop("too_late")
            return
        actions = np.empty((length, 0), np.float32)  # they are counted, never looked at
        run.next = log.chunk = Chunk(run.round, actions, observed_at, len(run.latency_ns) - 1)

    def _drop(self, reason: str) -> None:
        self.dropped[reason] += 1
        if self._run is not None:
            self._run.dropped += 1

    def _end(self, run: Run, outcome: str, now_ns: int) -> Ended:
        result = run.result(outcome, now_ns, self._period_ns)
        given = self._assignment
        record = TaskRecord(
            number=given.number,
            robot=self.name,
            scene=given.trace.kind,
            seed=given.trace.seed,
            wanted_s=given.wanted_s,
            given_s=self._seconds(run.started_ns),
            ended_s=self._seconds(now_ns),
            outcome=outcome,
            success=result.success,
            duration_s=result.duration_ns / 1e9,
            first_wait_s=result.first_wait_ns / 1e9,
            stalled_s=result.stalled_ns / 1e9,
            actions=result.actions,
            round_latency_s=tuple(ns / 1e9 for ns in result.round_latency_ns),
            round_executed=result.round_executed,
            refusals=result.refusals,
            dropped=result.dropped,
            task=given.id,
        )
        rounds = tuple(
            log.record(self.name, given.id, self._epoch_ns, self._period_ns) for log in self._log
        )
        marks = [*self._marks, (now_ns, "idle")]
        spans = tuple(
            Span(self.name, self._seconds(begun), self._seconds(ended), activity)
            for (begun, activity), (ended, _) in pairwise(marks)
            if ended > begun
        )
        self._run = None
        return Ended(record, rounds, spans)

    def _seconds(self, ns: int) -> float:
        return (ns - self._epoch_ns) / 1e9


def _unusable(body: Actions) -> str:
    if not len(body.actions):
        return "malformed"
    return "" if np.isfinite(body.actions).all() else "not_finite"


def with_idle(robots: Sequence[str], spans: Sequence[Span], length_s: float) -> tuple[Span, ...]:
    """The spans of tasks, in order, with what lies between them."""
    of: dict[str, list[Span]] = {robot: [] for robot in robots}
    for span in spans:
        of[span.robot].append(span)
    complete: list[Span] = []
    for robot, own in of.items():
        own.sort(key=lambda s: s.start_s)
        edges = [Span(robot, 0.0, 0.0, "idle"), *own, Span(robot, length_s, length_s, "idle")]
        for before, after in pairwise(edges):
            if after.start_s > before.end_s:
                complete.append(Span(robot, before.end_s, after.start_s, "idle"))
            if after.end_s > after.start_s:
                complete.append(after)
    return tuple(complete)
