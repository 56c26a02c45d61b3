"""Models around an action model, and what a robot does when one says no, or nothing (Rosa §3.3).

A task is served by up to four components. System 1 (actions) and System 2 (plans) are asked by the
robot; safety and monitor judge the cell periodically. Each has a latency objective (SLO) and a
fallback for the case that it is missed; safety's fallback also answers a warning.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Component(StrEnum):
    SYSTEM1 = "system1"
    """Action model: observation to action chunk."""
    SYSTEM2 = "system2"
    """Planner: what to do next, in words."""
    SAFETY = "safety"
    """Is the cell safe?"""
    MONITOR = "monitor"
    """Is the task ongoing, done or failed?"""


class TaskState(StrEnum):
    """What a monitor says of a task, and what a simulator knows of it."""

    ONGOING = "ongoing"
    DONE = "done"
    FAILED = "failed"


PERIODIC = frozenset({Component.SAFETY, Component.MONITOR})
"""Judged at a rate of their own; the others are asked once per round, or per so many."""


class Fallback(StrEnum):
    """What a robot does about a violation."""

    STOP_AND_RESEND = "stop_and_resend"
    """Stop, ask the component again, go on when it has answered."""
    USE_LAST_PLAN = "use_last_plan"
    """Go on with the newest plan there is."""
    STOP_AND_REPLAN = "stop_and_replan"
    """Stop, drop every plan and ask for new ones."""
    RETURN_TO_SAFE_STATE = "return_to_safe_state"
    """Stop, then move to the robot's safe state."""
    STOP_AND_CALL_HUMAN = "stop_and_call_human"
    """Stop until a human releases the robot."""


_ALWAYS = (
    Fallback.STOP_AND_RESEND,
    Fallback.RETURN_TO_SAFE_STATE,
    Fallback.STOP_AND_CALL_HUMAN,
)
FALLBACKS: Mapping[Component, tuple[Fallback, ...]] = {
    Component.SYSTEM1: (*_ALWAYS, Fallback.STOP_AND_REPLAN),
    Component.SYSTEM2: (*_ALWAYS, Fallback.USE_LAST_PLAN),
    Component.SAFETY: (*_ALWAYS, Fallback.STOP_AND_REPLAN),
    Component.MONITOR: _ALWAYS,
}
"""What each component may fall back to. Nothing but a late plan leaves the robot in motion."""

ESCALATIONS = (Fallback.STOP_AND_CALL_HUMAN, Fallback.RETURN_TO_SAFE_STATE)
"""What may follow when a limit is used up. Both end with a human: the second one moves first."""


@dataclass(frozen=True, slots=True)
class ComponentRules:
    """What a robot expects of one component."""

    slo_ns: int
    """From the observation to the answer."""
    fallback: Fallback
    period_ns: int = 0
    """Between two judgements; 0 where the robot asks."""
    asks_system1: bool = False
    """The policy itself answers, about what it is given to see: nothing while it is not asked."""

    @property
    def deadline_ns(self) -> int:
        """Oldest that the newest judged frame gets while every judgement meets the SLO; of what
        the robot asks, time to answer."""
        return self.period_ns + self.slo_ns

    @property
    def again_ns(self) -> int:
        """From one violation to the next, while nothing comes."""
        return max(self.period_ns, self.slo_ns)


@dataclass(frozen=True, slots=True)
class TaskRules:
    """How a robot reacts during the tasks of one class. A limit of N means that N in a row are
    answered by the fallback and one more escalates."""

    components: Mapping[Component, ComponentRules]
    max_task_retries: int
    on_max_task_retries: Fallback
    max_consecutive_safety_replan: int
    """Unsafe verdicts in a row."""
    max_consecutive_slo_violation: int
    """Missed answers in a row, of any one component."""
    on_max_violation: Fallback
    system2_ratio: int = 1
    """System 1 rounds per plan."""

    def waits_for(self, component: Component) -> Component:
        """Whose answer a robot waits for that holds because this component has not answered."""
        return Component.SYSTEM1 if self.components[component].asks_system1 else component


def are_skills(skills: Collection[str]) -> bool:
    """Whether a planner can choose from these."""
    return len(set(skills)) > 1 and all(skill.strip() for skill in skills)
