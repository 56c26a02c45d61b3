"""A bag as traces: finished tasks, round by round, to replay and simulate (Dai et al. §5.1)."""

from collections import Counter
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.events import events
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.runs.trace import Trace, TraceRound
from kairos_ros.recording.runs.trace_file import check_trace
from kairos_ros.recording.tasks import BagContent, BagRound, BagTask, sort_events

COMPLETE = ("succeeded", "max_actions", "max_duration")
"""Outcomes of tasks that ran to their end; a trace of any other would break off."""


@dataclass(frozen=True, slots=True)
class Extraction:
    traces: tuple[Trace, ...]
    left_out: Counter[str]
    """Tasks by why they are no traces."""
    without_chunks: int
    """Traces that lack the chunk of some round: its updates were not recorded."""
    messages_left_out: tuple[str, ...] = ()
    """Messages of the bag that made no sense: a line for each topic and reason."""


def extract(path: Path, *, full_updates: bool = True) -> Extraction:
    """The traces of a bag, in the order in which its tasks began, and what is none.

    full_updates: keep every step's update where the bag has it, else only their lengths.
    Raises ConfigError for what is no bag.
    """
    with Bag(path) as bag:
        found = traces_of(sort_events(events(bag)), full_updates=full_updates)
        return replace(found, messages_left_out=bag.left_out)


def traces_of(content: BagContent, *, full_updates: bool) -> Extraction:
    traces: list[Trace] = []
    left_out: Counter[str] = Counter()
    for task in content.tasks:
        if reason := _unfit(task):
            left_out[reason] += 1
            continue
        trace = _trace(task, full_updates)
        try:
            check_trace(trace)
        except ConfigError as error:
            left_out[f"it contradicts itself: {error}"] += 1
        else:
            traces.append(trace)
    bare = sum(any(r.chunk is None for r in trace.rounds) for trace in traces)
    return Extraction(tuple(traces), left_out, bare)


def _unfit(task: BagTask) -> str:
    """Why a task is no trace; empty if it is one."""
    if task.ended is None:
        return "its end is not in the bag"
    if task.ended.outcome not in COMPLETE:
        return task.ended.outcome.partition(":")[0]
    if not task.ended.round_executed:
        return "it was never served"
    sizes = set()
    for number in range(1, len(task.ended.round_executed) + 1):
        found = task.rounds.get(number, BagRound())
        if not found.asked or found.answer is None or found.answer.refused:
            return "a request or an answer is not in the bag"
        if found.answer.attempt not in found.asked:
            return "a request or an answer is not in the bag"
        sizes.add(found.answer.chunk_size)
    different = "its chunks have different lengths: its policy keeps a state of every task"
    return different if len(sizes) > 1 else ""


def _trace(task: BagTask, full_updates: bool) -> Trace:
    ended = task.ended
    assert ended is not None  # as `_unfit` has found
    served = [task.rounds[n + 1] for n in range(len(ended.round_executed))]
    first = served[0].answer
    assert first is not None
    updates = next((r.updates for r in served if r.updates is not None), None)
    goal = ended.goal
    return Trace(
        name=f"{goal.scene or goal.kind}/{task.key.name}",
        kind=goal.kind,
        instruction=goal.instruction,
        seed=goal.seed,
        control_rate_hz=goal.control_rate_hz,
        chunk_size=first.chunk_size,
        action_dim=first.action_dim,
        policy=first.policy,
        horizon_policy=updates.horizon_policy if updates else goal.horizon_policy,
        success=ended.success,
        duration_s=ended.duration_s,
        rounds=tuple(
            _round(task, number, found, full_updates)
            for number, found in enumerate(served, start=1)
        ),
        scale=updates.scale if updates else None,
    )


def _round(task: BagTask, number: int, found: BagRound, full_updates: bool) -> TraceRound:
    ended, answer = task.ended, found.answer
    assert ended is not None
    assert answer is not None
    observed = found.asked[answer.attempt]
    latency_s = ended.round_latency_s[number - 1]
    updates = found.updates
    if updates is not None and updates.attempt != answer.attempt:
        updates = None
    return TraceRound(
        round=number,
        requested_at=task.executed_at(found.asked[min(found.asked)]),
        observed_at=task.executed_at(observed),
        horizon=answer.horizon,
        executed=ended.round_executed[number - 1],
        latency_s=None if isnan(latency_s) else latency_s,
        state=observed.state,
        chunk=updates.chunk if updates else None,
        step_norms=updates.step_norms if updates else None,
        updates=updates.updates if updates and full_updates else None,
    )
