"""Whether robots did what their fleet file promises when something happened to them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from kairos_ros.core.pipeline import Component, TaskRules
from kairos_ros.demo.factory_events import JUDGED_BY, Kind, Promise, promise
from kairos_ros.demo.factory_story import TASK_OVER, Deed, Moment, Story
from kairos_ros.robot.state_table import Effect, Mode, Trigger

HEARD_WITHIN_S = 0.05
"""The ways of two messages may differ by so much."""
STOPS = (Kind.INTRUDER, Kind.LINGERER, Kind.SAFETY)
"""Events during which robots have to stand still."""

USED_UP = "retries are used up"
"""In the reason of a robot that calls a human because of its task (`robot/state_machine.py`)."""


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
    deed: Deed
    promised: str
    within_s: Mapping[str, float]
    """The promised time of each concerned robot; infinite where nothing has to stop."""
    reactions: tuple[Reaction, ...]
    result: Result
    why: str
    """In words; empty where it passed."""


def outcome(
    deed: Deed, story: Story, rules: Mapping[str, TaskRules], rates_hz: Mapping[str, float]
) -> Outcome:
    """Holds what was heard of the concerned robots against their rules and control rates."""
    promises = {r: promise(deed.kind, rules[r], rates_hz[r]) for r in deed.robots}
    found = {r: reaction(deed, story, r, promises[r]) for r in deed.robots}
    reactions = tuple(one for one in found.values() if one is not None)
    result, why = _judged(deed, story, promises, found)
    texts = dict.fromkeys(one.text for one in promises.values())
    within_s = {robot: one.within_s for robot, one in promises.items()}
    return Outcome(deed, " or ".join(texts), within_s, reactions, result, why)


def answers(moment: Moment, kind: Kind, promised: Promise) -> bool:
    """Whether this is what a robot does about such an event."""
    if kind is Kind.KNOCK:
        given_up = moment.component is Component.MONITOR and USED_UP in moment.reason
        return moment.trigger is Trigger.FAILED or given_up
    if moment.component is not JUDGED_BY[kind]:
        return False
    if kind is Kind.PLANNER:
        return promised.fallback is not None and moment.trigger.value == promised.fallback.value
    return Effect.STOP in moment.effects


def answered(deed: Deed, story: Story, robot: str, promised: Promise) -> list[Moment]:
    """Everything that the robot did about the event so far."""
    moments = story.since(robot, deed.began_s)
    if deed.kind is Kind.KNOCK:  # what is said of the next task's object is about another one
        moments = [*takewhile(lambda m: m.trigger not in TASK_OVER, moments)]
    return [m for m in moments if answers(m, deed.kind, promised)]


def reaction(deed: Deed, story: Story, robot: str, promised: Promise) -> Reaction | None:
    """What the robot did about the event, and how it went on; None where it did nothing.

    Where it had to stop, the stop that counts is the one after which it did not move any more until
    the event was over: before that, it may still have gone by pictures from before the event.
    """
    did = answered(deed, story, robot, promised)
    if deed.kind in STOPS:
        span = [m for m in story.since(robot, deed.began_s) if m.at_s <= deed.undone_s]
        went_on_s = max((m.at_s for m in span if m.after is Mode.RUNNING), default=deed.began_s)
        did = [m for m in did if went_on_s <= m.at_s <= deed.undone_s]
    if not did:
        return None
    first = did[0]
    over_s = max(deed.undone_s, first.at_s)
    later = story.since(robot, first.at_s)
    then = [m for m in later if m.at_s <= over_s][-1:]  # what it was at when it was over
    then += [m for m in later if m.at_s > over_s]
    again = next((m for m in then if m.after is Mode.RUNNING), None)
    until = [m for m in later if again is None or m.at_s <= again.at_s]
    return Reaction(
        robot,
        first.at_s - deed.began_s,
        first.reacted_s,
        first.frame_age_s,
        _told(until),
        None if again is None else max(0.0, again.at_s - over_s),
    )


def _told(moments: list[Moment]) -> str:
    """The first reason, and each mode once, in the order in which the robot came to it."""
    modes = list(dict.fromkeys(m.after for m in moments))
    if moments[-1].after is Mode.RUNNING:
        modes = [mode for mode in modes if mode is not Mode.RUNNING] + [Mode.RUNNING]
    return f"{moments[0].trigger}: {' → '.join(modes)}"


def _judged(
    deed: Deed,
    story: Story,
    promises: Mapping[str, Promise],
    found: Mapping[str, Reaction | None],
) -> tuple[Result, str]:
    reactions = [one for one in found.values() if one is not None]
    silent = [robot for robot, one in found.items() if one is None]
    if not reactions or (silent and deed.kind is not Kind.PLANNER):
        did = "was not stopped" if deed.kind in STOPS else "did nothing about it"
        return Result.FAIL, f"{', '.join(silent)} {did}"
    if deed.kind is Kind.LINGERER:
        (robot,) = deed.robots
        calls = [m for m in story.since(robot, deed.began_s) if Effect.CALL_HUMAN in m.effects]
        if not calls or calls[0].at_s > deed.undone_s + HEARD_WITHIN_S:
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
