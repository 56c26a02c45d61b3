"""What judges and planners said of robots, and what these did about it: plain records of a bag.

Times in seconds since the run began, on the recorder's clock; NaN where it was never recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kairos_ros.core.pipeline import Component, TaskRules, TaskState


@dataclass(frozen=True, slots=True)
class JudgementRecord:
    """What safety or monitor said of one look at one cell."""

    robot: str
    task: str
    """`TaskRecord.task` of the same robot."""
    component: Component
    pictured_s: float
    """When the recorder got the judged pictures, or the judge says that it did, whichever came
    first."""
    answered_s: float
    said: str
    """`safe`, `unsafe`, or a `TaskState`."""
    service: str = ""
    truth: TaskState | None = None
    """What the simulator knew of the same look, for a monitor's answer; None: nobody knows."""


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A question to the planner."""

    robot: str
    task: str
    asked_s: float
    answered_s: float
    goal: str
    instruction: str = ""
    """The answer."""


@dataclass(frozen=True, slots=True)
class TransitionRecord:
    """One transition of a robot's state machine, or one repeated stop; see PipelineEvent.msg."""

    robot: str
    task: str
    """Empty when the robot was idle."""
    at_s: float
    """The body had done what `effects` say."""
    before: str
    after: str
    trigger: str
    component: str
    reason: str
    effects: tuple[str, ...]
    reacted_s: float
    """Cause arrived, or deadline passed -> `at_s`."""
    frame_age_s: float
    """Judged picture taken -> `at_s`; NaN without a picture."""

    @property
    def repeated(self) -> bool:
        """Nothing but another stop of a robot that stood still already."""
        return self.before == self.after


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """Everything that a bag holds of the models around the policy."""

    rules: Mapping[str, TaskRules] = field(default_factory=dict)
    """Robot -> what it worked under."""
    judged: tuple[JudgementRecord, ...] = ()
    """By time of the answer."""
    plans: tuple[PlanRecord, ...] = ()
    """By time of the question."""
    moves: tuple[TransitionRecord, ...] = ()
    """By time."""
    looks_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Robot -> when it published pictures, ascending; no robot where they were not recorded."""

    def __bool__(self) -> bool:
        return bool(self.rules or self.judged or self.plans or self.moves)
