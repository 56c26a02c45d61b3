"""One task in progress: what was requested, what is in the buffer, what was executed, and when."""

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from kairos_ros.core.exchange import Actions, Answer, Execution, no_actions
from kairos_ros.core.execution.early_request import CALM, EarlyRequest, Surprise
from kairos_ros.core.execution.task import MAX_ACTIONS, MAX_DURATION, Task, TaskResult


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request of a round."""

    sent_ns: int
    executed: int
    """Actions executed in the task when its observation was taken."""


@dataclass(slots=True)
class Chunk:
    """Actions of one round, and how far they were executed."""

    round: int
    actions: np.ndarray
    """float32 [H, D]."""
    observed_at: int
    """Actions executed in the task when its observation was taken."""
    record: int
    """Index into `Run.latency_ns` and `Run.executed_of`."""
    index: int = 0
    """Of the next action: skipped plus executed."""
    executed: int = 0
    first_ns: int = 0
    last_ns: int = 0

    @property
    def remaining(self) -> int:
        return len(self.actions) - self.index


@dataclass(slots=True)
class Run:
    """State of the loop while a task runs."""

    task: Task
    started_ns: int
    holding_since_ns: int | None
    chunk: Chunk | None = None
    next: Chunk | None = None
    """Follows when `chunk` is used up."""
    round: int = 0
    """The newest one requested."""
    attempts: list[Attempt] = field(default_factory=list)
    """Of that round."""
    awaiting: bool = False
    """That round has no chunk yet."""
    resend_ns: int = 0
    """When to send that round again, by silence or after a refusal."""
    refused: bool = False
    """The newest attempt was refused; `resend_ns` is its retry."""
    abandoned: bool = False
    """The arm was stopped before that round was answered; its answer is of no use any more."""
    plan: str = ""
    """Newest instruction of a planner; empty: the task's own."""
    silences: int = 0
    """Attempts in a row without any answer."""
    observations: int = 1
    """That the policy reads."""
    kept: int = 0
    """Observations kept, of the newest control periods; 0 where the policy reads one."""
    observed_at: int = 0
    """Actions executed when the newest of them was taken."""
    keyframe_stride: int = 0
    """Of the policy, as in `PolicyInterface`."""
    done: deque[np.ndarray] = field(default_factory=deque)
    """The last executed actions, float32 [D], of a policy with a `keyframe_stride`."""
    horizon: int = 0
    """Of the newest chunk."""
    executed: int = 0
    stalled_before_ns: int = 0
    first_ns: int | None = None
    last_ns: int = 0
    latency_ns: list[float] = field(default_factory=list)
    """First request of the round sent -> chunk received; NaN of one that was given up."""
    executed_of: list[int] = field(default_factory=list)
    moved_of: list[tuple[int, int] | None] = field(default_factory=list)
    """When the round's first and last actions began, ns."""
    seam_of: list[float] = field(default_factory=list)
    """As `TaskResult.round_seam`."""
    last_action: np.ndarray | None = None
    """As its chunk had it, float32 [D]."""
    surprise: Surprise = CALM
    """The newest one."""
    early: EarlyRequest | None = None
    """Of the newest round, or the next one, until its chunk takes over."""
    surprise_of: list[float] = field(default_factory=list)
    """As `TaskResult.round_surprise`."""
    path: float = 0.0
    """Sum of the jumps between actions of one round."""
    steps: int = 0
    """How many those are."""
    refusals: int = 0
    dropped: int = 0
    guarded: int = 0

    @property
    def remaining(self) -> int:
        """Actions left of the running chunk."""
        return self.chunk.remaining if self.chunk else 0

    def committed(self, since: int) -> np.ndarray:
        """float32 [since + L, D]: what is executed from an observation until the next chunk
        follows; `since` actions were executed after it."""
        if self.chunk is None:
            return no_actions()
        end = self.chunk.index + self.switches_at - self.executed
        return self.chunk.actions[max(self.chunk.index - since, 0) : end]

    @property
    def switches_at(self) -> int:
        """Actions executed in the task when the next chunk takes over, if it has come by then."""
        end = self.executed + self.remaining
        return end if self.early is None else max(self.executed, min(self.early.until, end))

    def reads(self, observations: int, keyframe_stride: int) -> None:
        """What the policy reads, as in `PolicyInterface`."""
        if keyframe_stride != self.keyframe_stride:
            self.kept, self.keyframe_stride = 0, keyframe_stride
            self.done = deque(maxlen=2 * observations * keyframe_stride)
        self.observations = observations

    def last_done(self, since: int) -> np.ndarray:
        """float32 [L, D]: as `Request.executed`; `since` actions were executed after the
        observation."""
        done = list(self.done)[: len(self.done) - since]
        done = done[-self.observations * self.keyframe_stride :]
        return np.array(done, np.float32) if done else no_actions()

    def stalled_ns(self, now_ns: int) -> int:
        """Whole time without actions to execute."""
        since = now_ns if self.holding_since_ns is None else self.holding_since_ns
        return self.stalled_before_ns + max(0, now_ns - since)

    def surprised(self, surprise: Surprise, settle: int | None) -> bool:
        """As `Loop.surprised`: once per chunk, after `settle` actions of it, and only while no
        newer one is on its way."""
        self.surprise = surprise
        if settle is None or self.early or self.awaiting or self.next or self.chunk is None:
            return False
        if self.chunk.executed < settle or not self.chunk.remaining:
            return False
        self.early = EarlyRequest(surprise)
        return True

    def next_round(self) -> None:
        """Is requested now."""
        self.round += 1
        self.abandoned = False
        self.attempts.clear()
        self.silences = 0

    def answered(self, horizon: int, now_ns: int) -> None:
        """Actions of the awaited round came."""
        self.awaiting = False
        self.horizon = horizon
        self.latency_ns.append(now_ns - self.attempts[0].sent_ns)
        self.begin_record()

    def limit_reached(self, now_ns: int) -> str:
        """The outcome that ends the task now, one of LIMITS; empty while it may go on."""
        task = self.task
        if task.max_actions and self.executed >= task.max_actions:
            return MAX_ACTIONS
        if task.max_duration_ns and now_ns - self.started_ns >= task.max_duration_ns:
            return MAX_DURATION
        return ""

    def switch(self) -> None:
        """To the next chunk, past the actions that were executed since its observation."""
        if self.next is not None and self.executed >= self.switches_at:
            self.chunk, self.next, self.early = self.next, None, None
            self.chunk.index = self.executed - self.chunk.observed_at

    def stop(self, *, keep_round: bool) -> None:
        """Drops every buffered action, and the round that is awaited unless it shall be kept.

        Rounds are told without gaps: one that is given up has executed nothing, and has no latency,
        since nobody knows how long its answer would have taken.
        """
        self.next = None
        if self.chunk is not None:
            self.chunk.actions = self.chunk.actions[: self.chunk.index]
        if self.awaiting and not keep_round:
            self.awaiting, self.refused, self.abandoned = False, False, True
            self.latency_ns.append(math.nan)
            self.begin_record()
        if not self.awaiting:
            self.early = None

    def begin_record(self) -> None:
        """Of a round that was answered, or given up; it has executed nothing so far."""
        self.executed_of.append(0)
        self.moved_of.append(None)
        self.seam_of.append(math.nan)
        self.surprise_of.append(self.early.surprise.score if self.early else 0.0)

    def count_action(self, chunk: Chunk, now_ns: int) -> None:
        """The next action of `chunk` is executed in the period that begins now."""
        if self.first_ns is None:
            self.first_ns = now_ns
        action = chunk.actions[chunk.index]
        if self.last_action is not None:
            jump = float(np.linalg.norm(action - self.last_action))
            if chunk.executed == 0:
                self.seam_of[chunk.record] = jump
            else:
                self.path, self.steps = self.path + jump, self.steps + 1
        self.last_action = action
        if chunk.executed == 0:
            chunk.first_ns = now_ns
        self.last_ns = chunk.last_ns = now_ns
        chunk.index += 1
        chunk.executed += 1
        self.executed_of[chunk.record] += 1
        self.moved_of[chunk.record] = (chunk.first_ns, now_ns)
        self.executed += 1
        self.stalled_before_ns = self.stalled_ns(now_ns)
        self.holding_since_ns = None

    def uncount_action(self, chunk: Chunk) -> None:
        """The action that was counted last was not executed."""
        chunk.executed -= 1
        self.executed_of[chunk.record] -= 1
        self.executed -= 1
        if chunk.executed == 0:
            self.moved_of[chunk.record] = None
        if self.keyframe_stride:
            self.done.pop()

    def execution(self, now_ns: int, period_ns: int) -> Execution:
        chunk = self.chunk
        started = chunk if chunk is not None and chunk.executed > 0 else None
        shown = self.early.surprise if self.early else self.surprise
        ended_ns = started.last_ns + period_ns if started and not started.remaining else now_ns
        return Execution(
            round=chunk.round if chunk else 0,
            started=started is not None,
            holding=self.holding_since_ns is not None,
            started_ago_ns=max(0, now_ns - started.first_ns) if started else 0,
            ended_ago_ns=max(0, now_ns - ended_ns),
            executed=chunk.executed if chunk else 0,
            remaining=self.remaining,
            chunk_index=chunk.index if chunk else 0,
            stalled_ns=self.stalled_ns(now_ns),
            period_ns=period_ns,
            seam=self._seam(started),
            surprised=self.early is not None,
            surprise=shown.score,
            surprise_joint=shown.joint,
        )

    def _seam(self, started: Chunk | None) -> float:
        seam = self.seam_of[started.record] if started else 0.0
        return 0.0 if math.isnan(seam) else seam

    def result(self, outcome: str, now_ns: int, period_ns: int) -> TaskResult:
        """The outcome `succeeded` is the only success."""
        first_ns = self.first_ns
        since = self.started_ns
        return TaskResult(
            task=self.task,
            success=outcome == "succeeded",
            outcome=outcome,
            started_ns=since,
            duration_ns=(now_ns if first_ns is None else self.last_ns) - since,
            stalled_ns=self.stalled_ns(now_ns),
            first_wait_ns=(now_ns if first_ns is None else first_ns) - since,
            actions=self.executed,
            round_latency_ns=tuple(self.latency_ns),
            round_executed=tuple(self.executed_of),
            round_started_ns=tuple(m and m[0] - since for m in self.moved_of),
            round_ended_ns=tuple(m and m[1] + period_ns - since for m in self.moved_of),
            refusals=self.refusals,
            dropped=self.dropped,
            guarded=self.guarded,
            round_seam=tuple(self.seam_of),
            mean_step=self.path / self.steps if self.steps else 0.0,
            round_surprise=tuple(self.surprise_of),
        )


def unwanted(answer: Answer, robot: str, session: str, run: Run | None) -> str:
    """Why an answer is of no use to this robot, whatever it holds; empty if it may be. The
    same rule for real and virtual robots.

    run: the robot's task in progress.
    """
    answered = answer.id
    if answered.robot != robot:
        return "other_robot"
    if answered.session != session:
        return "other_session"
    if run is None:
        return "no_task"
    if answered.task != run.task.id:
        return "other_task"
    if answered.round < run.round:
        return "old_round"
    if answered.round > run.round or answered.attempt >= len(run.attempts):
        return "never_requested"
    if not run.awaiting:
        return "stopped" if run.abandoned else "repeated"
    newest = answered.attempt == len(run.attempts) - 1 and not run.refused
    return "" if newest or isinstance(answer.body, Actions) else "repeated"
