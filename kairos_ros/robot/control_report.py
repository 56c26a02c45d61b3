"""What a controller tells of its robot, and to whom."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kairos_ros.core.exchange import Execution, Observation, Request
from kairos_ros.core.execution.task import Task, TaskResult
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ServerStatus
from kairos_ros.robot.supervision.state_machine import Transition
from kairos_ros.robot.supervision.state_table import Mode
from kairos_ros.robot.supervision.supervisor import AskPlan


@dataclass(frozen=True, slots=True)
class Report:
    """The robot as of one control period, for status, telemetry and diagnostics."""

    state: RobotState = RobotState.IDLE
    task: Task | None = None
    instruction: str = ""
    """What is being followed: the newest plan, else the task's own words; empty before the first
    plan of a robot that has a planner."""
    execution: Execution = field(default_factory=Execution)
    horizon: int = 0
    task_actions: int = 0
    """Executed in the running task."""
    tasks_done: int = 0
    tasks_succeeded: int = 0
    actions_executed: int = 0
    actions_guarded: int = 0
    guarded_by: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    silences: int = 0
    surprises: int = 0
    """Rounds asked for early, because the arm did not move as its actions say."""
    unusable_motion: int = 0
    """Control periods whose motion could not be compared: what was measured is no number."""
    server: ServerStatus | None = None
    """The newest word of the serving node that is asked; None where there is none."""
    bound: str = ""
    """Its identity, also when it has left; empty: nobody is asked."""
    why_no_server: str = ""
    """For people; empty while one is asked."""
    misfit: str = ""
    """Why its policy cannot move this robot, for people; empty if it can."""
    policy: str = ""
    """That its requests ask for; empty: the server's default."""
    other_servers: str = ""
    """Servers whose answers were dropped, with their numbers, for people."""
    rebound: int = 0
    """Tasks that went on with another server."""
    pauses: int = 0
    """Times that the control loop stood still in a task, so that actions were dropped."""
    paused_ns: int = 0
    """How long the last time was."""
    missed_periods: int = 0
    periods: int = 0
    network_ns: int = 0
    body_fault: str = ""
    """Why the body failed last; empty after it was reset successfully."""
    body_faults: Mapping[str, int] = field(default_factory=dict)
    """How often it failed, by reason."""
    body_absence: str = ""
    """Why the body of an idle robot cannot be used just now; it may be over by itself."""
    body_tolerated: Mapping[str, int] = field(default_factory=dict)
    """How often it failed and did no harm, by reason: single reads and writes, and while idle."""
    mode: Mode | None = None
    """Of a supervised robot."""
    retries: int = 0
    """Of the running task, by a supervised robot."""


class ControlListener(Protocol):
    """Who gets what the controller produces. Called in the control thread; must not block."""

    def send(self, request: Request) -> None:
        """An observation was made for it."""

    def changed(self, report: Report) -> None:
        """The state, the task, its instruction, the mode or the server changed."""

    def finished(self, result: TaskResult) -> None: ...

    def acting(self, action: np.ndarray, state: Callable[[], np.ndarray]) -> None:
        """The body is about to execute `action`, float32 [action_dim]; `state` as for `period`."""

    def period(self, state: Callable[[], np.ndarray]) -> None:
        """A control period has begun; `state` reads the body's state, float32 [state_dim]."""

    def unready(self) -> None:
        """The same while the body is not to be used: before the first task, and after a fault."""


class SupervisionListener(Protocol):
    """Who gets what the supervisor of a robot produces; called as `ControlListener` is."""

    def ask_plan(self, ask: AskPlan, observation: Observation, observed_ago_ns: int) -> None: ...

    def moved(self, transition: Transition, task: str) -> None:
        """The state machine made a transition, for the record. To be carried out here: `RESEND` to
        safety or monitor, `CALL_HUMAN`. task: its id; empty before the first."""
