"""What a robot's body did over time, from its own log: moving, holding, resetting, or nothing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kairos_ros.recording.runs.run import Activity, Span
from kairos_ros.robot.body_log import BodyEvent

LONGEST_PERIOD_S = 0.25
"""Commands further apart do not belong to one span."""


@dataclass(frozen=True, slots=True)
class SeenCommand:
    """What a body was told in one control period."""

    at_s: float
    activity: Activity
    """executing, holding (in a task), or idle: holding between tasks."""


def commands(events: Iterable[BodyEvent], ends_s: Sequence[float]) -> list[SeenCommand]:
    """Every act and hold of a session. `ends_s`: when tasks ended, by any clock close to the log's.

    A hold belongs to a task from the end of its reset until the task has ended.
    """
    found: list[SeenCommand] = []
    open_since: float | None = None
    for event in events:
        at_s = event.at_ns / 1e9
        match event.kind:
            case "ready":
                open_since = at_s
            case "reset":
                open_since = None
            case "act":
                found.append(SeenCommand(at_s, "executing"))
            case "hold":
                since = open_since
                over = since is None or any(since < end <= at_s for end in ends_s)
                found.append(SeenCommand(at_s, "idle" if over else "holding"))
    return found


def spans(robot: str, told: Sequence[SeenCommand]) -> list[Span]:
    """Consecutive commands of a kind as one span; where there are none for long, nothing."""
    found: list[Span] = []
    for command, after in zip(told, [*told[1:], None], strict=True):
        end_s = command.at_s + 1 / 30 if after is None else after.at_s
        if end_s - command.at_s > LONGEST_PERIOD_S:
            end_s = command.at_s + 1 / 30
        last = found[-1] if found else None
        if last and last.activity == command.activity and command.at_s - last.end_s < 1e-6:
            found[-1] = Span(robot, last.start_s, end_s, command.activity)
        else:
            found.append(Span(robot, command.at_s, end_s, command.activity))
    return found


def longest_hold_s(told: Sequence[SeenCommand], since_s: float, until_s: float) -> float:
    """The longest time without an action within a task, in a span of time."""
    longest, began, before = 0.0, None, -math.inf
    for command in told:
        holds = command.activity == "holding" and since_s <= command.at_s < until_s
        if began is None or command.at_s - before > LONGEST_PERIOD_S:
            began = command.at_s  # a reset lies between
        began = began if holds else None
        before = command.at_s
        if began is not None:
            longest = max(longest, command.at_s + 1 / 30 - began)
    return longest


def longest_silence_s(events: Iterable[BodyEvent], since_s: float, until_s: float) -> float:
    """The longest time in which the body was told nothing at all, in a span of time.

    Resets are left out: then the body is at work by itself.
    """
    longest = 0.0
    steps = [e for e in events if e.kind in ("act", "hold", "reset", "ready")]
    for one, other in pairwise(steps):
        begin, end = max(one.at_ns / 1e9, since_s), min(other.at_ns / 1e9, until_s)
        if one.kind != "reset":
            longest = max(longest, end - begin)
    if steps and steps[-1].kind != "reset":
        longest = max(longest, until_s - max(steps[-1].at_ns / 1e9, since_s))
    return longest
