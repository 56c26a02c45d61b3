"""What robot and serving node say to each other, as plain data. Times are integer nanoseconds."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np


@dataclass(frozen=True, slots=True)
class Task:
    """One task of one robot, from goal to result."""

    id: str
    """Unique within the robot's session."""
    instruction: str
    kind: str = ""
    """Class of the task for per-class history."""
    horizon_policy: str = ""
    """Empty: the server's default."""
    seed: int = 0
    max_actions: int = 0
    """0: no limit."""
    max_duration_ns: int = 0
    """0: no limit."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What the arm is doing, as durations and counts (see ExecutionInfo.msg)."""

    round: int = 0
    started: bool = False
    holding: bool = False
    started_ago_ns: int = 0
    ended_ago_ns: int = 0
    """Since the last action's control period ended; 0 while executing."""
    executed: int = 0
    remaining: int = 0
    chunk_index: int = 0
    stalled_ns: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """Actions, please. The observation is taken when this is sent."""

    task: Task
    round: int
    attempt: int
    execution: Execution


class AnswerKind(IntEnum):
    """Values are those of ActionChunk.msg."""

    ACTIONS = 0
    REFUSED = 1
    REFETCH = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request."""

    robot: str
    session: str
    task: str
    round: int
    attempt: int
    kind: AnswerKind
    actions: np.ndarray | None = None
    """float32 [H, D], index 0 belongs to the moment of the observation."""
    reason: str = ""
    retry_after_ns: int = 0
    """Of a refusal; 0: do not repeat the request."""
    server_ns: int = 0
    """The server's share of the round trip."""
    engine_latency_ns: int = 0
    """What the server needs for a round lately, at most two full batches; 0: unknown."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task went (see ExecuteTask.action)."""

    task: Task
    success: bool
    outcome: str
    started_ns: int
    """When the task began, with its first request."""
    duration_ns: int
    """First request sent -> last action executed; until the end of a task without actions."""
    stalled_ns: int
    first_wait_ns: int
    """First request sent -> first action executed; the whole duration without actions."""
    actions: int
    round_latency_ns: tuple[float, ...]
    """First request of the round sent -> its chunk received, of every round that was served; NaN of
    one that was given up."""
    round_executed: tuple[int, ...]
    """Actions executed, of the same rounds."""
    round_started_ns: tuple[int | None, ...]
    """First request of the task -> first action of the round, of the same rounds."""
    round_ended_ns: tuple[int | None, ...]
    """First request of the task -> end of the control period of the round's last action."""
    refusals: int
    dropped: int
    guarded: int

    @property
    def mean_horizon(self) -> float:
        """Executed actions per round that executed any; 0 without."""
        executed = [count for count in self.round_executed if count]
        return sum(executed) / len(executed) if executed else 0.0
