"""Whether robots did what their fleet file promises when something happened to them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from kairos_ros.core.pipeline import Component, TaskRules
from kairos_ros.lab.demos.factory.events import JUDGED_BY, EventKind, Promise, promise
from kairos_ros.lab.demos.factory.history import (
    TASK_OVER,
    FactoryEvent,
    FleetHistory,
    SeenTransition,
)
from kairos_ros.robot.supervision.state_table import Effect, Mode, Trigger

HEARD_WITHIN_S = 0.05
"""The ways of two messages may differ by so much."""
STOPS = (EventKind.INTRUDER, EventKind.LINGERER, EventKind.SAFETY)
"""Events during which robots have to stand still."""

USED_UP = "retries are used up"
"""In the reason of a robot that calls a human because of its task (`robot.supervision`)."""


class Result(StrEnum):
    PASS = "pass"
    LATE = "late"
    """It was done, after the promised time."""
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Reaction:
    """What one robot did about one event."""

    robot: str
    after_s: float
    """Event to reaction, as seen from outside; what had to be heard and judged is in it."""
    reacted_s: float
    """Verdict arrived, or deadline passed, until the body had done it: the robot's clock."""
    frame_age_s: float | None
    """The same from the judged picture."""
    did: str
    """Why, and to which modes it came until it was running again, each once."""
    recovered_s: float | None
    """From the end of the event, or from the reaction where that came later, until it was running
    again; None if it never was."""


@dataclass(frozen=True, slots=True)
class Outcome:
    event: FactoryEvent
    promised: str
    within_s: Mapping[str, float]
    """The promised time of each concerned robot; infinite where nothing has to stop."""
    reactions: tuple[Reaction, ...]
    result: Result
    why: str
    """In words; empty where it passed."""


def outcome(
    event: FactoryEvent,
    history: FleetHistory,
    rules: Mapping[str, TaskRules],
    rates_hz: Mapping[str, float],
) -> Outcome:
    """Holds what was heard of the concerned robots against their rules and control rates."""
    promises = {r: promise(event.kind, rules[r], rates_hz[r]) for r in event.robots}
    found = {r: reaction(event, history, r, promises[r]) for r in event.robots}
    reactions = tuple(one for one in found.values() if one is not None)
    result, why = _judged(event, history, promises, found)
    texts = dict.fromkeys(one.text for one in promises.values())
    within_s = {robot: one.within_s for robot, one in promises.items()}
    return Outcome(event, " or ".join(texts), within_s, reactions, result, why)


def answers(transition: SeenTransition, kind: EventKind, promised: Promise) -> bool:
    """Whether this is what a robot does about such an event."""
    if kind is EventKind.KNOCK:
        given_up = transition.component is Component.MONITOR and USED_UP in transition.reason
        return transition.trigger is Trigger.FAILED or given_up
    if transition.component is not JUDGED_BY[kind]:
        return False
    if kind is EventKind.PLANNER:
        return promised.fallback is not None and transition.trigger.value == promised.fallback.value
    return Effect.STOP in transition.effects


def answered(
    event: FactoryEvent, history: FleetHistory, robot: str, promised: Promise
) -> list[SeenTransition]:
    """Everything that the robot did about the event so far."""
    transitions = history.since(robot, event.began_s)
    if event.kind is EventKind.KNOCK:  # what is said of the next task's object is about another one
        transitions = [*takewhile(lambda m: m.trigger not in TASK_OVER, transitions)]
    return [m for m in transitions if answers(m, event.kind, promised)]


def reaction(
    event: FactoryEvent, history: FleetHistory, robot: str, promised: Promise
) -> Reaction | None:
    """What the robot did about the event, and how it went on; None where it did nothing.

    Where it had to stop, the stop that counts is the one after which it did not move any more until
    the event was over: before that, it may still have gone by pictures from before the event.
    """
    did = answered(event, history, robot, promised)
    if event.kind in STOPS:
        span = [m for m in history.since(robot, event.began_s) if m.at_s <= event.undone_s]
        went_on_s = max((m.at_s for m in span if m.after is Mode.RUNNING), default=event.began_s)
        did = [m for m in did if went_on_s <= m.at_s <= event.undone_s]
    if not did:
        return None
    first = did[0]
    over_s = max(event.undone_s, first.at_s)
    later = history.since(robot, first.at_s)
    then = [m for m in later if m.at_s <= over_s][-1:]  # what it was at when it was over
    then += [m for m in later if m.at_s > over_s]
    again = next((m for m in then if m.after is Mode.RUNNING), None)
    until = [m for m in later if again is None or m.at_s <= again.at_s]
    return Reaction(
        robot,
        first.at_s - event.began_s,
        first.reacted_s,
        first.frame_age_s,
        _told(until),
        None if again is None else max(0.0, again.at_s - over_s),
    )


def _told(transitions: list[SeenTransition]) -> str:
    """The first reason, and each mode once, in the order in which the robot came to it."""
    modes = list(dict.fromkeys(m.after for m in transitions))
    if transitions[-1].after is Mode.RUNNING:
        modes = [mode for mode in modes if mode is not Mode.RUNNING] + [Mode.RUNNING]
    return f"{transitions[0].trigger}: {' → '.join(modes)}"


def _judged(
    event: FactoryEvent,
    history: FleetHistory,
    promises: Mapping[str, Promise],
    found: Mapping[str, Reaction | None],
) -> tuple[Result, str]:
    reactions = [one for one in found.values() if one is not None]
    silent = [robot for robot, one in found.items() if one is None]
    if not reactions or (silent and event.kind is not EventKind.PLANNER):
        did = "was not stopped" if event.kind in STOPS else "did nothing about it"
        return Result.FAIL, f"{', '.join(silent)} {did}"
    if event.kind is EventKind.LINGERER:
        (robot,) = event.robots
        calls = [m for m in history.since(robot, event.began_s) if Effect.CALL_HUMAN in m.effects]
        if not calls or calls[0].at_s > event.undone_s + HEARD_WITHIN_S:
            return Result.FAIL, f"{robot} called nobody"
    for one in reactions:
        if one.recovered_s is None:
            return Result.FAIL, f"{one.robot} was not seen running again"
    late = [one for one in reactions if one.after_s > promises[one.robot].within_s]
    if late:
        worst = max(late, key=lambda one: one.after_s)
        within_s = promises[worst.robot].within_s
        return Result.LATE, f"{worst.robot}: {worst.after_s:.2f} s, promised {within_s:.2f} s"
    return Result.PASS, ""
