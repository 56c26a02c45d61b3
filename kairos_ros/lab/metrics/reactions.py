"""How robots reacted to their judges: modes over time, stops and how long they took, retries, waits
for humans. From what a bag holds of them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np

from kairos_ros.core.pipeline import Component
from kairos_ros.recording.runs.pipeline import TransitionRecord
from kairos_ros.recording.runs.run import FleetRun
from kairos_ros.robot.supervision.state_table import Effect, Mode, Trigger

IDLE = "no task"
STILL = (Mode.HOLDING, Mode.WAITING)


@dataclass(frozen=True, slots=True)
class ModeSpan:
    """A robot's state machine was in one mode. Seconds since the run began."""

    robot: str
    start_s: float
    end_s: float
    mode: str
    """A `Mode`, or a name for a robot that holds because it has nothing to do."""


@dataclass(frozen=True, slots=True)
class StopTimes:
    """All stops of robots in motion for one cause."""

    cause: str
    count: int
    reacted_p50_s: float
    """From the cause's arrival (a verdict came, a deadline passed) to a body that holds."""
    reacted_p95_s: float
    reacted_max_s: float
    frame_age_p50_s: float
    """From the judged picture to a body that holds; NaN where nobody judged one."""
    frame_age_max_s: float


@dataclass(frozen=True, slots=True)
class RobotReactions:
    """One robot."""

    robot: str
    stops: int
    retries: int
    """Attempts begun because the monitor said "failed"."""
    human_waits: int
    waited_s: float
    released: tuple[str, ...]
    """Who and why, of each release."""
    share: Mapping[str, float]
    """Mode -> share of the time in tasks, or waiting for a human."""


def cause_of(move: TransitionRecord) -> str:
    """In words, what led to a transition: `safety: unsafe`, `monitor: overdue`, `reset done`."""
    if not move.component:
        return move.trigger
    if move.trigger == Trigger.DONE:
        return f"{move.component}: {Trigger.DONE}"
    if isnan(move.frame_age_s):
        return f"{move.component}: overdue"
    said = "unsafe" if move.component == Component.SAFETY else Trigger.FAILED
    return f"{move.component}: {said}"


def mode_spans(run: FleetRun) -> list[ModeSpan]:
    """Of every robot with recorded transitions, from the beginning of the run to its end."""
    spans = []
    for robot, moves in _by_robot(run).items():
        begun, mode = 0.0, moves[0].before
        for move in moves:
            if move.after != mode:
                spans.append(ModeSpan(robot, begun, move.at_s, mode))
                begun, mode = move.at_s, move.after
        spans.append(ModeSpan(robot, begun, max(begun, run.length_s), mode))
    tasks = _tasks(run)
    return [part for span in spans for part in _with_idle(span, tasks[span.robot])]


def stop_times(run: FleetRun) -> list[StopTimes]:
    """Of every cause, the most frequent first."""
    causes: defaultdict[str, list[TransitionRecord]] = defaultdict(list)
    for moves in _by_robot(run).values():
        for move in filter(is_stop, moves):
            causes[cause_of(move)].append(move)
    found = []
    for cause, moves in causes.items():
        reacted = np.array([move.reacted_s for move in moves])
        ages = np.array([m.frame_age_s for m in moves if not isnan(m.frame_age_s)])
        p50, p95 = np.percentile(reacted, (50, 95)).tolist()
        oldest = (float(np.median(ages)), float(ages.max())) if len(ages) else (np.nan, np.nan)
        found.append(StopTimes(cause, len(moves), p50, p95, float(reacted.max()), *oldest))
    return sorted(found, key=lambda one: (-one.count, one.cause))


def reactions(run: FleetRun) -> list[RobotReactions]:
    """One per robot with recorded transitions, in the order of `run.robots`."""
    spans, found = mode_spans(run), []
    for robot, moves in _by_robot(run).items():
        mine = [span for span in spans if span.robot == robot and span.mode != IDLE]
        whole_s = sum(span.end_s - span.start_s for span in mine)
        share: defaultdict[str, float] = defaultdict(float)
        for span in mine:
            share[span.mode] += (span.end_s - span.start_s) / whole_s if whole_s else 0.0
        waits = [span for span in mine if span.mode == Mode.WAITING]
        found.append(
            RobotReactions(
                robot,
                stops=sum(map(is_stop, moves)),
                retries=sum(move.trigger == Trigger.FAILED for move in moves),
                human_waits=sum(Effect.CALL_HUMAN in move.effects for move in moves),
                waited_s=sum(span.end_s - span.start_s for span in waits),
                released=tuple(m.reason for m in moves if m.trigger == Trigger.RELEASED),
                share=dict(share),
            )
        )
    return found


def is_stop(move: TransitionRecord) -> bool:
    """A component, or its silence, made a robot hold that moved or was about to."""
    return bool(move.component) and Effect.STOP in move.effects and move.before not in STILL


def _by_robot(run: FleetRun) -> dict[str, list[TransitionRecord]]:
    moves: dict[str, list[TransitionRecord]] = {robot: [] for robot in run.robots}
    for move in run.pipeline.moves if run.pipeline else ():
        moves.setdefault(move.robot, []).append(move)
    return {robot: mine for robot, mine in moves.items() if mine}


def _tasks(run: FleetRun) -> Mapping[str, list[tuple[float, float]]]:
    tasks: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for task in sorted(run.tasks, key=lambda task: task.given_s):
        tasks[task.robot].append((task.given_s, task.ended_s))
    return tasks


def _with_idle(span: ModeSpan, tasks: Sequence[tuple[float, float]]) -> list[ModeSpan]:
    """A span of holding cut at the ends of tasks; any other as it is."""
    if span.mode != Mode.HOLDING:
        return [span]
    parts, at_s = [], span.start_s
    for given_s, ended_s in tasks:
        start_s, end_s = max(given_s, span.start_s), min(ended_s, span.end_s)
        if end_s > start_s:
            parts.append(ModeSpan(span.robot, at_s, start_s, IDLE))
            parts.append(ModeSpan(span.robot, start_s, end_s, span.mode))
            at_s = end_s
    parts.append(ModeSpan(span.robot, at_s, span.end_s, IDLE))
    return [part for part in parts if part.end_s > part.start_s]
