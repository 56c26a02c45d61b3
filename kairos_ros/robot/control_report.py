"""What a robot is doing, as of one control period."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from kairos_ros.robot.exchange import Execution, Task
from kairos_ros.robot.state_table import Mode


class RobotState(IntEnum):
    """Values are those of RobotStatus.msg."""

    IDLE = 0
    RUNNING = 1
    HOLDING = 2
    LEAVING = 3


@dataclass(frozen=True, slots=True)
class Report:
    """The robot as of one control period, for status, telemetry and diagnostics."""

    state: RobotState = RobotState.IDLE
    task: Task | None = None
    instruction: str = ""
    """What is being followed: the newest plan, else the task's own words."""
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
    missed_periods: int = 0
    periods: int = 0
    network_ns: int = 0
    body_fault: str = ""
    """Why the body failed last; empty after it was reset successfully."""
    body_faults: Mapping[str, int] = field(default_factory=dict)
    """How often it failed, by reason."""
    body_tolerated: Mapping[str, int] = field(default_factory=dict)
    """Its reads and writes that failed and did no harm, by reason."""
    mode: Mode | None = None
    """Of a supervised robot."""
    retries: int = 0
    """Of the running task, by a supervised robot."""
