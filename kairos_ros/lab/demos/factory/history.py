"""What happened in the factory demo and what robots did about it, as plain data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kairos_ros.core.pipeline import Component
from kairos_ros.lab.demos.factory.events import EventKind
from kairos_ros.lab.metrics.reactions import ModeSpan
from kairos_ros.robot.supervision.state_table import Effect, Mode, Trigger

TASK_OVER = (Trigger.TASK_ENDED, Trigger.DONE, Trigger.RESET_FAILED)
NO_TASK = "no_task"
"""How a robot between two tasks, which holds, is shown."""


@dataclass(frozen=True, slots=True)
class SeenTransition:
    """One transition of a robot's state machine, as its PipelineEvent was heard."""

    at_s: float
    """Since the run began; when it was heard."""
    robot: str
    before: Mode
    after: Mode
    trigger: Trigger
    component: Component | None
    reason: str
    effects: frozenset[Effect]
    reacted_s: float
    """Its cause arrived, or a deadline passed, until the body had done it: the robot's clock."""
    frame_age_s: float | None
    """The same from the judged picture."""


@dataclass(frozen=True, slots=True)
class FactoryEvent:
    """One event that was made to happen."""

    kind: EventKind
    robots: tuple[str, ...]
    """Whom it concerned: those that had to react."""
    text: str
    began_s: float
    undone_s: float
    """When it was over: somebody left, a service was started again."""


@dataclass(frozen=True, slots=True)
class HumanRelease:
    """The demo acted as the human that a robot had called."""

    at_s: float
    robot: str
    waited_s: float
    name: str
    reason: str
    took_out: bool
    """It was not worth another try: the task was canceled, too."""


@dataclass(slots=True)
class FleetHistory:
    """Everything so far, in the order in which it was heard."""

    transitions: list[SeenTransition] = field(default_factory=list)
    events: list[FactoryEvent] = field(default_factory=list)
    releases: list[HumanRelease] = field(default_factory=list)

    def mode(self, robot: str) -> Mode:
        """What a robot is doing, as far as it has been heard."""
        last = self.last(robot)
        return last.after if last else Mode.HOLDING

    def last(self, robot: str) -> SeenTransition | None:
        return next((m for m in reversed(self.transitions) if m.robot == robot), None)

    def since(self, robot: str, from_s: float) -> list[SeenTransition]:
        """What a robot did from then on."""
        return [m for m in self.transitions if m.robot == robot and m.at_s >= from_s]

    def spans(self, robots: Iterable[str], end_s: float) -> list[ModeSpan]:
        """Every robot's modes, without gaps, up to `end_s`."""
        return [
            span
            for robot in robots
            for span in _spans(robot, [m for m in self.transitions if m.robot == robot], end_s)
        ]

    def attempt_s(self, robot: str, now_s: float) -> float:
        """How long the robot has been running in this attempt at its task."""
        before = (*TASK_OVER, Trigger.RESET_DONE)
        mine = [m.at_s for m in self.transitions if m.robot == robot and m.trigger in before]
        return self.running_s(robot, mine[-1] if mine else 0.0, now_s)

    def running_s(self, robot: str, from_s: float, to_s: float) -> float:
        """How long a robot was executing actions between the two times."""
        mine = [s for s in self.spans([robot], to_s) if s.mode == Mode.RUNNING]
        return sum(max(0.0, min(s.end_s, to_s) - max(s.start_s, from_s)) for s in mine)

    def count(self, robots: Iterable[str], trigger: Trigger) -> int:
        """How often robots made transitions for that reason."""
        mine = frozenset(robots)
        return sum(m.trigger is trigger for m in self.transitions if m.robot in mine)


def _spans(robot: str, transitions: Sequence[SeenTransition], end_s: float) -> list[ModeSpan]:
    spans, since_s, mode = [], 0.0, NO_TASK
    for transition in transitions:
        idle = transition.trigger in TASK_OVER or _idle(mode, transition)
        after = NO_TASK if idle and transition.after is Mode.HOLDING else transition.after.value
        if after != mode:
            spans.append(ModeSpan(robot, since_s, min(transition.at_s, end_s), mode))
            since_s, mode = transition.at_s, after
    spans.append(ModeSpan(robot, min(since_s, end_s), end_s, mode))
    return [span for span in spans if span.end_s > span.start_s]


def _idle(mode: str, transition: SeenTransition) -> bool:
    """A robot without a task that is warned has no task all the same."""
    return mode == NO_TASK and transition.trigger is Trigger.UNSAFE
