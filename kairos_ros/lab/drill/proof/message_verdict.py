"""Judges a robot whose body keeps no log, by what it said: weaker than `verdict`, and says so."""

from collections.abc import Sequence
from itertools import pairwise

from kairos_ros.lab.drill.proof.exchange import Exchange, TaskEnd
from kairos_ros.lab.drill.proof.verdict import (
    DONE,
    Check,
    FaultLimits,
    RobotVerdict,
    Window,
    chunks_by_tier,
    first_of,
    longest_wait_s,
    spans_since,
)
from kairos_ros.recording.runs.run import CANCELED, Span
from kairos_ros.telemetry.events import TaskKey

ENDED_WELL = (*DONE, CANCELED)


def judge_messages(
    robot: str, exchange: Exchange, told: Sequence[Span], window: Window, limits: FaultLimits
) -> RobotVerdict | None:
    """None for a robot that had no task while the fault was there. A task that still runs is not
    lost. `told`: what the robot said that it was doing, on this host's monotonic clock."""
    began = {k: r[0].at_s for k, r in exchange.asked.items() if r} | exchange.began_s
    here = [
        key
        for key, began_s in began.items()
        if key.robot == robot
        and began_s < window.repaired_s
        and (key not in exchange.ended or exchange.ended[key].at_s > window.begin_s)
    ]
    if not here:
        return None
    ended = [exchange.ended[key] for key in here if key in exchange.ended]
    bad = [f"task {end.key.task}: {end.outcome}" for end in ended if end.outcome not in ENDED_WELL]
    strange = [line for end in ended for line in _strange(end, exchange)]
    pulses = [window.begin_s, *exchange.pulses[robot], window.end_s]
    inside = [s for s in sorted(pulses) if window.begin_s <= s <= window.end_s]
    silence_s = max(later - s for s, later in pairwise(inside))
    wait_s = longest_wait_s(robot, exchange, window)
    mine = [span for span in told if span.robot == robot]
    holds = [
        min(s.end_s, window.end_s) - max(s.start_s, window.begin_s)
        for s in mine
        if s.activity == "holding"
    ]
    calls = [
        f"after {at_s - window.begin_s:.1f} s: {why}"
        for at_s, why in exchange.calls[robot]
        if window.begin_s <= at_s <= window.end_s
    ]
    checks = (
        Check("no task lost", not bad, "; ".join(bad) or "none"),
        Check("rounds agree", not strange, first_of(strange) or "yes; actions are not proven"),
        Check("no human called", not calls, first_of(calls) or "none"),
        limits.lively(silence_s, "a sign of it"),
        limits.served(wait_s),
    )
    return RobotVerdict(
        robot=robot,
        tasks=len(here),
        finished=sum(end.outcome in DONE for end in ended),
        proven=None,
        wrong=(),
        chunks=chunks_by_tier(robot, exchange, window),
        dropped=sum(end.dropped for end in ended),
        hold_s=max([0.0, *holds]),
        silence_s=silence_s,
        wait_s=wait_s,
        checks=checks,
        spans=spans_since(window.begin_s, mine, window),
    )


def _strange(end: TaskEnd, exchange: Exchange) -> list[str]:
    """Rounds that were executed and never answered, or for longer than they were answered."""
    if not _whole(end.key, exchange):
        return []
    lengths: dict[int, int] = {}
    for chunk in exchange.answers(end.key):
        lengths[chunk.round] = max(lengths.get(chunk.round, 0), len(chunk.actions))
    return [
        f"task {end.key.task}: {count} actions of round {n}, which has {lengths.get(n, 0)}"
        for n, count in enumerate(end.executed, 1)
        if count > lengths.get(n, 0)
    ]


def _whole(key: TaskKey, exchange: Exchange) -> bool:
    """Whether the task was heard from its first round."""
    return any(request.round == 1 for request in exchange.asked.get(key, []))
