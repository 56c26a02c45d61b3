"""A task of a robot, and how it went. Times are integer nanoseconds."""

from dataclasses import dataclass

MAX_ACTIONS, MAX_DURATION = "max_actions", "max_duration"
LIMITS = (MAX_ACTIONS, MAX_DURATION)
"""Outcomes of a task that came to its own limit."""


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
    policy: str = ""
    """Name of one of the server's policies; empty: its default."""


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
    round_seam: tuple[float, ...] = ()
    """Jump from the last action before the round to its first one, of the same rounds: Euclidean
    norm over the dimensions of an action, robot units; NaN in the first round and without an
    action."""
    mean_step: float = 0.0
    """The same between two actions of one round, on average; 0 without."""
    round_surprise: tuple[float, ...] = ()
    """How far the arm departed from its actions where it asked for a round early; 0 of all
    others."""
    ended: bool = False
    """It came to its own limit where nothing can tell success."""

    @property
    def mean_horizon(self) -> float:
        """Executed actions per round that executed any; 0 without."""
        executed = [count for count in self.round_executed if count]
        return sum(executed) / len(executed) if executed else 0.0
