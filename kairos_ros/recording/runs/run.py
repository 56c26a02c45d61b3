"""What a fleet left behind: plain records of tasks and rounds, live, from a bag or simulated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kairos_ros.core.robot_state import RobotState
from kairos_ros.recording.runs.pipeline import PipelineRecord

Activity = Literal["idle", "executing", "holding", "down"]
ACTIVITIES: dict[RobotState, Activity] = {
    RobotState.IDLE: "idle",
    RobotState.RUNNING: "executing",
    RobotState.HOLDING: "holding",
    RobotState.LEAVING: "down",
}
"""What a robot says, in the words of run files."""

CANCELED = "canceled"
LOST = "lost"
"""The robot's node or its answers went away in the middle of the task."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task that a robot was given. Times in seconds since the run began."""

    number: int
    """Position in the workload; the same number means the same scene and seed."""
    robot: str
    scene: str
    seed: int
    wanted_s: float
    """When the task arrived."""
    given_s: float
    """When a robot got it."""
    ended_s: float
    outcome: str
    """As in ExecuteTask's result, or `LOST`."""
    success: bool = False
    duration_s: float = 0.0
    """First request sent to last action executed."""
    first_wait_s: float = 0.0
    stalled_s: float = 0.0
    """Held for want of actions, the first wait included."""
    actions: int = 0
    round_latency_s: tuple[float, ...] = ()
    """First request sent to chunk received; NaN of a round that was given up."""
    round_executed: tuple[int, ...] = ()
    refusals: int = 0
    dropped: int = 0
    guarded: int = 0
    round_seam: tuple[float, ...] = ()
    """Jump from the last action before the round to its first one, as in TaskEvent; empty where
    nobody told."""
    mean_step: float = 0.0
    """The same between two actions of one round, on average."""
    round_surprise: tuple[float, ...] = ()
    """How far the arm departed from its actions where it asked for a round early, as in TaskEvent;
    0 of all others; empty where nobody told."""
    task: str = ""
    """Id of the task, to find its rounds; empty where rounds were not recorded."""
    policy: str = ""
    """Type and fingerprint of the weights that it ran on; empty where nobody told."""

    @property
    def finished(self) -> bool:
        """Ended by itself: not canceled, not lost."""
        return self.outcome not in (CANCELED, LOST)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of one task: generation on the server, execution on the robot.

    Times in seconds since the run began, on the clock of whoever recorded the run (a bag: the
    recorder's). NaN where a round never got that far.
    """

    robot: str
    task: str
    """Unique within the run; `TaskRecord.task` of the same robot."""
    round: int
    attempts: int
    """Observations sent: one, and one more per refetch or repetition."""
    requested_s: float
    """First request sent."""
    answered_s: float
    """Chunk received."""
    exec_start_s: float
    exec_end_s: float
    """End of the control period of the last executed action."""
    requested_at: int
    """Actions of the task executed when the round was first requested."""
    observed_at: int
    """The same at the observation that the chunk was made from."""
    horizon: int
    """Actions sent, counted from the observation; 0 for a round that got none."""
    chunk_size: int
    executed: int
    queued_s: float
    """Received by the server -> dispatched to an engine."""
    compute_s: float
    server_s: float
    batch_size: int
    tier: str
    engine: str
    horizon_reason: str = ""
    reason: str = ""
    """Of the scheduler's decision, or of the refusal."""

    @property
    def latency_s(self) -> float:
        """First request sent to chunk received."""
        return self.answered_s - self.requested_s


@dataclass(frozen=True, slots=True)
class Span:
    """What a robot did for a while; seconds since the run began."""

    robot: str
    start_s: float
    end_s: float
    activity: Activity


@dataclass(frozen=True, slots=True)
class FleetRun:
    """Everything a run left behind."""

    robots: tuple[str, ...]
    length_s: float
    tasks: tuple[TaskRecord, ...]
    spans: tuple[Span, ...]
    open_s: tuple[tuple[float, float], ...]
    """From when to when free robots got new tasks; after that, running tasks only finish."""
    rounds: tuple[RoundRecord, ...] = ()
    """Empty where they were not recorded."""
    pipeline: PipelineRecord | None = None
    """None where nothing is known of models around the policy."""
    left_out: tuple[str, ...] = ()
    """Messages of a bag that made no sense, counted by topic and reason: a line each."""


def joined(runs: Sequence[FleetRun]) -> FleetRun:
    """Runs of the same robots one after the other, as one run, of action models only."""
    tasks: list[TaskRecord] = []
    rounds: list[RoundRecord] = []
    spans: list[Span] = []
    opened: list[tuple[float, float]] = []
    at = 0.0
    for run in runs:
        tasks += (
            replace(t, wanted_s=t.wanted_s + at, given_s=t.given_s + at, ended_s=t.ended_s + at)
            for t in run.tasks
        )
        rounds += (_later(r, at) for r in run.rounds)
        spans += (replace(s, start_s=s.start_s + at, end_s=s.end_s + at) for s in run.spans)
        opened += ((start + at, end + at) for start, end in run.open_s)
        at += run.length_s
    return FleetRun(runs[0].robots, at, tuple(tasks), tuple(spans), tuple(opened), tuple(rounds))


def _later(record: RoundRecord, by_s: float) -> RoundRecord:
    return replace(
        record,
        requested_s=record.requested_s + by_s,
        answered_s=record.answered_s + by_s,
        exec_start_s=record.exec_start_s + by_s,
        exec_end_s=record.exec_end_s + by_s,
    )


def shared_tasks(one: FleetRun, other: FleetRun) -> tuple[FleetRun, FleetRun]:
    """Both runs without the tasks that only one of them finished, so that they can be compared.

    Without this the faster of two runs of equal length is charged for tasks the other never did.
    """
    numbers = {t.number for t in one.tasks if t.finished}
    numbers &= {t.number for t in other.tasks if t.finished}
    left, right = (
        replace(run, tasks=tuple(t for t in run.tasks if t.number in numbers))
        for run in (one, other)
    )
    return left, right


class Timeline:
    """Turns reports of what each robot does now into spans."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, Activity]] = {}
        self._spans: list[Span] = []

    def report(self, robot: str, now_s: float, activity: Activity) -> None:
        since = self._since.get(robot)
        if since is not None and since[1] == activity:
            return
        if since is not None:
            self._spans.append(Span(robot, since[0], now_s, since[1]))
        self._since[robot] = (now_s, activity)

    def spans(self, end_s: float) -> tuple[Span, ...]:
        """All spans, with the open ones closed at `end_s`."""
        still = [Span(r, start, end_s, activity) for r, (start, activity) in self._since.items()]
        return tuple(sorted([*self._spans, *still], key=lambda s: (s.robot, s.start_s)))
