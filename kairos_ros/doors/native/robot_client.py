"""One robot that runs the loop of a robot node itself: what it told, and which answers are its own.

It asks, binds itself to a server and executes as a robot node does; nothing of it is inferred here.
"""

import uuid
from collections import Counter
from collections.abc import Callable

import numpy as np

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Actions, Answer, Execution, Refetch, Refusal, Request
from kairos_ros.core.execution.task import Task
from kairos_ros.core.name_patterns import matches
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ServerStatus
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.robot.control_report import Report
from kairos_ros.transport.robot_link.messages import Announce, RobotReport

MOST_SERVERS = 16


class RobotClient:
    """The `Member` of such a robot."""

    waits = False
    dialect = "kairos"

    def __init__(self, robot: str, peer: str, tell: Callable[[ServerStatus], None]) -> None:
        """tell: hands on what a serving node that serves this robot said; must not block."""
        self.robot, self.peer = robot, peer
        self.session = uuid.uuid4().hex
        self.counters: Counter[str] = Counter()
        self.last_error = ""
        self.announced: Announce | None = None
        self._tell = tell
        self._servers: dict[str, ServerStatus] = {}
        self._told = RobotReport(RobotState.IDLE)
        self._told_ns = 0

    @property
    def spec(self) -> RobotSpec:
        """Once it is announced."""
        assert self.announced is not None
        robot = self.announced.interface
        sizes = {key: size for key, size in robot.cameras.items() if size is not None}
        return RobotSpec(robot.state_dim, robot.action_dim, self.announced.control_rate_hz, sizes)

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(self.announced.interface.cameras) if self.announced else ()

    @property
    def absent(self) -> tuple[str, ...]:
        return tuple(self.announced.interface.absent) if self.announced else ()

    def heard(self, status: ServerStatus, at_ns: int) -> None:
        if matches(status.robots, self.robot):
            self._servers.pop(status.server, None)
            self._servers[status.server] = status
            if len(self._servers) > MOST_SERVERS:
                del self._servers[next(iter(self._servers))]
        self._tell(status)

    def receive(self, answer: Answer) -> bool:
        if (answer.id.robot, answer.id.session) == (self.robot, self.session):
            match answer.body:
                case Actions():
                    self.counters["chunks"] += 1
                case Refetch():
                    self.counters["refetches"] += 1
                case Refusal(code):
                    self.counters[f"refused_{code.name.lower()}"] += 1
            return True
        self.counters["dropped_not_its_own"] += 1
        return False

    def look(self, now_ns: int) -> str:
        return ""

    def reported(self, report: RobotReport, now_ns: int) -> bool:
        """What it does. Returns whether people should hear of it at once."""
        before = self._told
        self._told, self._told_ns = report, now_ns
        return (before.state, before.task, before.server) != (
            report.state,
            report.task,
            report.server,
        )

    def check(self, request: Request) -> None:
        """Raises WireError for a request that contradicts what the robot announced."""
        if self.announced is None:
            raise WireError("a request of a robot that has not announced itself")
        robot = self.announced.interface
        for seen in (*request.earlier, request.observation):
            if seen.state.shape != (robot.state_dim,):
                raise WireError(f"state of shape {seen.state.shape}, not [{robot.state_dim}]")
            if not np.isfinite(seen.state).all():
                raise WireError("the state holds a number that is not finite")
        if strange := set(request.observation.images) - set(robot.cameras):
            raise WireError(f"pictures of {', '.join(sorted(strange))}, which was not announced")
        for name in ("committed", "executed"):
            rows = getattr(request, name)
            if len(rows) and rows.shape[1] != robot.action_dim:
                raise WireError(f"{name} of shape {rows.shape}, not [n, {robot.action_dim}]")
            if not np.isfinite(rows).all():
                raise WireError(f"{name} holds a number that is not finite")

    def report(self, now_ns: int) -> Report:
        told, known = self._told, self.announced
        task = Task(told.task, told.instruction, policy=told.policy) if told.task else None
        left = told.remaining
        if left and known is not None:
            left = max(0, left - int((now_ns - self._told_ns) * known.control_rate_hz / 1e9))
        return Report(
            state=told.state,
            task=task,
            instruction=told.instruction,
            execution=Execution(round=told.round, remaining=left, stalled_ns=told.stalled_ns),
            horizon=told.horizon,
            tasks_done=told.tasks_done,
            actions_executed=told.actions_executed,
            dropped={"dropped": told.dropped},
            silences=told.silences,
            server=self._servers.get(told.server),
            bound=told.server,
            why_no_server="" if told.server else "it has chosen none",
            policy=told.policy or (known.policy if known else ""),
        )
