"""What a robot's state machine remembers, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kairos_ros.core.pipeline import Component, TaskRules
from kairos_ros.robot.supervision.state_table import HOLDING, RUNNING, Mode

SYSTEM1, SYSTEM2, SAFETY, MONITOR = Component


@dataclass(frozen=True, slots=True)
class State:
    """Everything that `step` remembers."""

    mode: Mode = HOLDING
    task: bool = False
    now_ns: int = 0
    """Newest time seen; an older event counts as of this."""
    judged_ns: int = 0
    """Newest frame that the monitor judged; when the attempt began, before the first."""
    verdicts: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    """Service -> (frame_ns, safe) of its newest verdict, while that is not overdue."""
    due_ns: Mapping[Component, int] = field(default_factory=dict)
    """When a component's silence becomes a violation."""
    late: frozenset[Component] = frozenset()
    """Whose next answer is late: it does not end a series of violations."""
    stopped_by: frozenset[Component] = frozenset()
    """Who must answer before the robot goes on; safety is asked for its verdict instead."""
    slo_violations: Mapping[Component, int] = field(default_factory=dict)
    """In a row."""
    unsafe: int = 0
    """Unsafe verdicts in a row, during tasks."""
    retries: int = 0
    """Of the running task."""
    unplanned: bool = False
    """The goal may be in words that only the planner knows, and its first plan is not there: the
    robot holds, and nobody can judge its task."""
    reset_owed: bool = False
    """A retry has begun and its reset was not completed."""
    human_next: bool = False
    """A limit is used up: at the safe state the robot waits for a human."""


def is_safe(rules: TaskRules, state: State, now_ns: int) -> bool:
    """No safety service says otherwise, and at least one has spoken of a recent frame."""
    if SAFETY not in rules.components:
        return True
    recent = fresh(rules, state, now_ns).values()
    return bool(recent) and all(safe for _, safe in recent)


def is_warned(rules: TaskRules, state: State, now_ns: int) -> bool:
    """A safety service has lately said "unsafe"; silence is no warning."""
    if SAFETY not in rules.components:
        return False
    return not all(safe for _, safe in fresh(rules, state, now_ns).values())


def wants_actions(rules: TaskRules, state: State) -> bool:
    """Whether System 1 may be asked: the robot runs, or only waits for what it answers."""
    if state.mode is RUNNING:
        return True
    waits = state.task and state.stopped_by == {SYSTEM1} and not state.reset_owed
    return state.mode is HOLDING and waits and is_safe(rules, state, state.now_ns)


def fresh(rules: TaskRules, state: State, now_ns: int) -> dict[str, tuple[int, bool]]:
    """Verdicts of frames that are not older than their deadline."""
    if not state.verdicts:
        return {}
    oldest_ns = now_ns - rules.components[SAFETY].deadline_ns
    return {name: said for name, said in state.verdicts.items() if said[0] >= oldest_ns}
