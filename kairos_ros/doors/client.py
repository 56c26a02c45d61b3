"""One client as a robot of the fleet: its session, tasks and rounds, and whose answers it takes.

A client sends an observation and waits for its chunk. It says neither when its task begins nor what
it executes. So both are inferred: another prompt, or a long pause, begins a new task; what was sent
is executed from the reply until the next request. Events in, requests out; no I/O, no clock.
"""

import uuid
from collections import Counter
from dataclasses import replace

import numpy as np

from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.exchange import Actions, Answer, Execution, Observation, Request, RequestId
from kairos_ros.core.execution.server_binding import ServerBinding
from kairos_ros.core.execution.task import Task
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ServerStatus
from kairos_ros.doors.observation_map import WHOLE, ObservationMap
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.robot.control_report import Report

FINAL = (
    RefusalCode.BAD_STATE,
    RefusalCode.BAD_IMAGE,
    RefusalCode.NOT_FINITE,
    RefusalCode.TOO_LARGE,
)
"""The same observation will be refused again, whenever it comes."""


class Client:
    """Not thread safe; times are monotonic nanoseconds."""

    def __init__(self, robot: str, read: ObservationMap, peer: str = "") -> None:
        """peer: address, for people."""
        self.robot, self.map, self.peer = robot, read, peer
        self.session = uuid.uuid4().hex
        size = read.interface.state_dim
        self.spec = RobotSpec(size, read.action_dim, read.control_rate_hz)
        self.binding = ServerBinding(robot, read.interface, read.policy)
        self.counters: Counter[str] = Counter()
        """What it was answered and refused, and what was dropped."""
        self.last_error = ""
        self._period_ns = round(1e9 / read.control_rate_hz)
        self._task: Task | None = None
        self._tasks = 0
        self._round = self._attempt = 0
        self._asked_ns: int | None = None
        """When the first request of the round came; None: no request is open."""
        self._request: Request | None = None
        self._taken_ns = 0
        self._replied_ns: int | None = None
        """When the last chunk of this task was sent to the client."""
        self._rows = self._executed = 0
        """Actions of that chunk, and those of them that the client executes."""
        self._soonest_ns = 0
        self._stalled_ns = 0
        """Waited in this task."""

    @property
    def dialect(self) -> str:
        return self.map.dialect

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(self.map.images)

    @property
    def absent(self) -> tuple[str, ...]:
        return tuple(self.map.absent_cameras)

    @property
    def server(self) -> ServerStatus | None:
        return self.binding.server

    def heard(self, status: ServerStatus, at_ns: int) -> None:
        self.binding.heard(status, at_ns)

    @property
    def misfit(self) -> str:
        """Why the policy of its server cannot serve it; empty if it can, or is not known."""
        policy = self.binding.policy
        return self.map.misfit(policy, self.chunk_size) if policy else ""

    @property
    def chunk_size(self) -> int:
        """Actions of a chunk of its policy; 0 while that is not known."""
        server, policy = self.server, self.binding.policy
        if server is None or policy is None:
            return 0
        sizes = {p.interface.name: p.chunk_size for p in server.policies if p.interface}
        return sizes.get(policy.name, server.chunk_size)

    @property
    def soonest_ns(self) -> int:
        """Before this time its next round is not asked for, by the server's rate control."""
        return self._soonest_ns

    @property
    def waits(self) -> bool:
        """A request of it is open."""
        return self._asked_ns is not None

    @property
    def task(self) -> Task | None:
        return self._task

    def look(self, now_ns: int) -> str:
        """Chooses the server for now, and ends a task whose client has paused. Why its task cannot
        go on; empty: it can."""
        _, outcome = self.binding.look(now_ns)
        if outcome:
            self.end_task()
        if self._asked_ns is None and self._paused(now_ns):
            self.end_task()
        return outcome

    def begin(self, prompt: str, observation: Observation, came_ns: int, now_ns: int) -> Request:
        """The first request of a round. A server is bound.

        came_ns: when the observation came, before its pictures were encoded.
        """
        if self._task is None or prompt != self._task.instruction or self._paused(came_ns):
            self.end_task()
            self._tasks += 1
            policy = self.map.policy
            horizon = self.map.horizon_policy
            if self.map.horizon == WHOLE and self.chunk_size:
                horizon = f"static:{self.chunk_size}"
            self._task = Task(
                str(self._tasks), prompt, prompt, horizon, seed=self._tasks, policy=policy
            )
            self.binding.begin(policy)
        self._round, self._attempt, self._asked_ns = self._round + 1, 0, came_ns
        self._taken_ns = came_ns
        task = self._task
        self._request = Request(
            RequestId(self.robot, self.session, task.id, self._round, 0),
            instruction=prompt,
            kind=prompt,
            horizon_policy=task.horizon_policy,
            seed=task.seed,
            observation=observation,
            policy=self.binding.asks_for,
        )
        return self._sent(now_ns)

    def repeat(self, now_ns: int) -> Request:
        """The same observation again: the client has no newer one."""
        self._attempt += 1
        return self._sent(now_ns)

    def receive(self, answer: Answer) -> bool:
        """Whether an answer is that of the open request; what is not is dropped and counted."""
        reason = self._unusable(answer)
        if reason:
            self.counters[f"dropped_{reason}"] += 1
            return False
        if isinstance(answer.body, Actions):
            self.binding.taken(answer.body.policy)
            asked_ns = self._asked_ns or 0
            self._soonest_ns = asked_ns + answer.body.request_period_ns
            self._rows = len(answer.body.actions)
            self._executed = min(self._rows, self.map.executes or self._rows)
        return True

    def replied(self, now_ns: int) -> None:
        """The chunk was sent: it is executed from now on."""
        if self._asked_ns is not None:
            self._stalled_ns += now_ns - self._asked_ns
        self._asked_ns, self._request, self._replied_ns = None, None, now_ns
        self.counters["chunks"] += 1

    def failed(self, error: str) -> None:
        """The client was told an error in place of a chunk: its task is over."""
        self.counters["errors"] += 1
        self.last_error = error
        self._asked_ns, self._request = None, None
        self.end_task()

    def end_task(self) -> None:
        self._task = None
        self._replied_ns = None
        self._round = self._rows = self._executed = 0
        self._stalled_ns = 0
        self.binding.end()

    def report(self, now_ns: int) -> Report:
        """For its status, as a robot node tells it."""
        task = self._task
        state = RobotState.IDLE
        if task is not None:
            state = RobotState.RUNNING if self._asked_ns is None else RobotState.HOLDING
        left = 0
        if state is RobotState.RUNNING and self._replied_ns is not None:
            done = (now_ns - self._replied_ns) // self._period_ns
            left = max(0, self._executed - int(done))
        execution = Execution(
            round=self._round, remaining=left, stalled_ns=self._stalled_ns, inferred=True
        )
        dropped = {k: n for k, n in self.counters.items() if k.startswith("dropped_")}
        return Report(
            state=state,
            task=task,
            instruction=task.instruction if task else "",
            execution=execution,
            horizon=self._rows,
            tasks_done=self._tasks - (task is not None),
            dropped=dropped,
            server=self.server,
            bound=self.binding.bound,
            why_no_server="" if self.binding.bound else self.binding.why_none(now_ns),
            misfit=self.misfit,
            policy=self.binding.asks_for,
        )

    def _paused(self, now_ns: int) -> bool:
        """For longer than what it was sent takes, and the map allows."""
        if self._replied_ns is None:
            return False
        allowed_ns = self._executed * self._period_ns + round(self.map.new_task_after_s * 1e9)
        return now_ns - self._replied_ns > allowed_ns

    def _sent(self, now_ns: int) -> Request:
        assert self._request is not None  # `begin` was called
        self.counters["requests"] += 1
        asked = replace(self._request.id, attempt=self._attempt)
        return replace(
            self._request,
            id=asked,
            server=self.binding.bound,
            observed_ago_ns=now_ns - self._taken_ns,
            execution=self._inferred(now_ns),
        )

    def _inferred(self, now_ns: int) -> Execution:
        """What was executed, from the reply to the last round until the request of this one."""
        if self._replied_ns is None or self._asked_ns is None:
            return Execution(inferred=True, holding=True, period_ns=self._period_ns)
        return Execution(
            round=self._round - 1,
            started=True,
            holding=True,
            started_ago_ns=now_ns - self._replied_ns,
            ended_ago_ns=now_ns - self._asked_ns,
            executed=self._executed,
            chunk_index=self._executed,
            stalled_ns=self._stalled_ns,
            period_ns=self._period_ns,
            inferred=True,
        )

    def _unusable(self, answer: Answer) -> str:
        """Why an answer is of no use; empty if it is."""
        if not self.binding.is_from(answer.server):
            return "other_server"
        task = self._task
        if (answer.id.robot, answer.id.session) != (self.robot, self.session):
            return "not_its_own"
        if task is None or self._asked_ns is None or answer.id.task != task.id:
            return "other_task"
        if answer.id.round != self._round or answer.id.attempt > self._attempt:
            return "other_round"
        if not isinstance(answer.body, Actions):
            return "" if answer.id.attempt == self._attempt else "older_attempt"
        if not self.binding.is_of(answer.body.policy):
            return "other_policy"
        actions = answer.body.actions
        if actions.ndim != 2 or actions.shape[1] != self.map.action_dim or not len(actions):
            return "malformed"
        return "" if np.isfinite(actions).all() else "not_finite"
