"""What happens to the fleet in the factory demo, and what its fleet file promises then. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component, Fallback, TaskRules
from kairos_ros.fleet.fleet_file import FleetFile
from kairos_ros.robot.adapters.sim.metaworld_scenes import LOSABLE

LONGEST_STAY_S = 20.0
"""Fleets that let somebody stay longer than this before a human is called are not kept waiting."""
COMES_TO_REST_S = 1.5
"""From a knock to an object that lies where it stays: before that, nothing has failed yet."""


class EventKind(StrEnum):
    INTRUDER = "intruder"
    """Somebody enters a cell, and leaves."""
    KNOCK = "knock"
    """The object of a task is knocked away."""
    SAFETY = "safety"
    """The safety service is killed, and started again."""
    PLANNER = "planner"
    """The planner is slow once."""
    LINGERER = "lingerer"
    """Somebody enters a cell and stays until a human is called."""


NEEDS = {
    EventKind.INTRUDER: "safety",
    EventKind.KNOCK: f"a monitor, and a scene with a loose object ({', '.join(LOSABLE)})",
    EventKind.SAFETY: "safety",
    EventKind.PLANNER: "a system2",
    EventKind.LINGERER: "safety, and a max_consecutive_safety_replan that is used up within "
    f"{LONGEST_STAY_S:.0f} s",
}
ONE_CELL = (EventKind.INTRUDER, EventKind.KNOCK, EventKind.LINGERER)
"""Happen to one robot; the others to all that a service is there for."""
JUDGED_BY = {
    EventKind.INTRUDER: Component.SAFETY,
    EventKind.KNOCK: Component.MONITOR,
    EventKind.SAFETY: Component.SAFETY,
    EventKind.PLANNER: Component.SYSTEM2,
    EventKind.LINGERER: Component.SAFETY,
}
"""Whose word, or silence, makes a robot react."""


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """One event of the script."""

    kind: EventKind
    robots: tuple[str, ...]
    """Whom it concerns."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What a fleet file says about robots that feel an event."""

    within_s: float
    """From the event to what the robot does about it; infinite where nothing has to stop."""
    fallback: Fallback | None
    """That answers it; None where it is answered by a retry."""
    text: str


def parse_events(text: str, fleet: FleetFile) -> list[PlannedEvent]:
    """Reads `intruder:arm_1,knock,safety`; of an empty text, one of each that the fleet can have.

    Where no robot is named, those that it can happen to take turns. Raises ConfigError for an
    unknown event, for one that this fleet cannot have, and for a fleet that can have none.
    """
    wanted = [part.strip() for part in text.split(",")] if text.strip() else []
    planned: list[PlannedEvent] = []
    wanted = wanted or [kind.value for kind in EventKind if concerned(kind, fleet)]
    if not wanted:
        raise ConfigError("nothing can happen to this fleet: it has neither judges nor a system2")
    for part in wanted:
        name, _, robot = part.partition(":")
        if name not in list(EventKind):
            raise ConfigError(f"event {name!r:.80} is none of {', '.join(EventKind)}")
        kind = EventKind(name)
        possible = concerned(kind, fleet)
        if not possible or (robot and robot not in possible):
            whom = f"only to {', '.join(possible)}" if possible else "to nobody in this fleet"
            raise ConfigError(f"event {part!r:.80} can happen {whom}: it needs {NEEDS[kind]}")
        if kind not in ONE_CELL:
            if robot:
                raise ConfigError(f"event {part!r:.80}: {name} happens to all, leave the name out")
            planned.append(PlannedEvent(kind, possible))
            continue
        turn = sum(one.kind in ONE_CELL for one in planned) % len(possible)
        planned.append(PlannedEvent(kind, (robot or possible[turn],)))
    return planned


def concerned(kind: EventKind, fleet: FleetFile) -> tuple[str, ...]:
    """The robots that an event can happen to."""
    found = []
    for name, group in fleet.robots.items():
        task = fleet.tasks[group.task]
        if JUDGED_BY[kind] not in task.rules.components:
            continue
        if kind is EventKind.KNOCK and task.scene not in LOSABLE:
            continue
        if kind is EventKind.LINGERER and human_after_s(task.rules) > LONGEST_STAY_S:
            continue
        found.append(name)
    return tuple(found)


def human_after_s(rules: TaskRules) -> float:
    """How long somebody may stay until the robot calls a human, if every verdict comes."""
    safety = rules.components[Component.SAFETY]
    return (rules.max_consecutive_safety_replan + 1) * safety.period_ns / 1e9


def promise(kind: EventKind, rules: TaskRules, control_rate_hz: float) -> Promise:
    """What these rules promise for a robot of this control rate."""
    component = rules.components[JUDGED_BY[kind]]
    period_s = 1 / control_rate_hz
    deadline_s = component.deadline_ns / 1e9 + period_s
    if kind is EventKind.PLANNER:
        if component.fallback is Fallback.USE_LAST_PLAN:
            return Promise(float("inf"), component.fallback, "goes on with its last plan")
        within = f"{component.fallback} within {deadline_s:.2f} s of its question"
        return Promise(float("inf"), component.fallback, within)
    if kind is EventKind.KNOCK:
        within_s = COMES_TO_REST_S + deadline_s
        return Promise(within_s, None, f"tries again within {within_s:.2f} s")
    text = f"{component.fallback} within {deadline_s:.2f} s"
    return Promise(deadline_s, component.fallback, text)
