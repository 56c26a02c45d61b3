"""A bag as a `FleetRun`: what every metric, report and comparison is computed from."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kairos_ros.core.robot_state import RobotState
from kairos_ros.recording.events import events
from kairos_ros.recording.pipeline import read_pipeline
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.runs.run import (
    ACTIVITIES,
    CANCELED,
    LOST,
    FleetRun,
    RoundRecord,
    TaskRecord,
    Timeline,
)
from kairos_ros.recording.tasks import BagContent, BagRound, BagTask, sort_events
from kairos_ros.telemetry.events import ChunkRequested


def read_bag(path: Path) -> FleetRun:
    """The run that a bag holds, on the recorder's clock from the bag's first message on.

    Tasks are numbered by their seeds where these all differ, so that bags of one workload agree on
    the numbers, else in the order in which they began. A robot got each when it arrived. A task
    that the bag does not see the end of is canceled, or lost where its robot went away. Messages
    that make no sense are left out and counted. Raises ConfigError for what is no bag.
    """
    with Bag(path) as bag:
        run = fleet_run(sort_events(events(bag)), bag.length_s)
        pipeline = read_pipeline(bag) or None
        return replace(run, pipeline=pipeline, left_out=bag.left_out)


def fleet_run(content: BagContent, length_s: float) -> FleetRun:
    """length_s: first to last message of the bag."""
    timeline = Timeline()
    for status in content.statuses:
        timeline.report(status.robot, status.at_s, ACTIVITIES[status.state])
    given = sorted((task for task in content.tasks if _begun(task)), key=_given_s)
    seeds = [_seed(task) for task in given]
    numbers = seeds if len(set(seeds)) == len(seeds) else range(len(given))
    tasks = tuple(
        _task(number, task, content, length_s) for number, task in zip(numbers, given, strict=True)
    )
    robots = {s.robot for s in content.statuses} | {t.key.robot for t in content.tasks}
    return FleetRun(
        robots=tuple(sorted(robots, key=_natural)),
        length_s=length_s,
        tasks=tasks,
        spans=timeline.spans(length_s),
        open_s=(_open_s(tasks) if tasks else (0.0, length_s),),
        rounds=tuple(record for task in content.tasks for record in _rounds(task)),
    )


def _open_s(tasks: Sequence[TaskRecord]) -> tuple[float, float]:
    """From the first task that was given until the last one was, and as long as every robot worked
    where that is longer: people give each robot a task or two, and all of them at once."""
    last_s: dict[str, float] = {}
    for task in tasks:
        last_s[task.robot] = max(task.ended_s, last_s.get(task.robot, 0.0))
    given_s = [task.given_s for task in tasks]
    return min(given_s), max(*given_s, min(last_s.values()))


def task_name(task: BagTask) -> str:
    """Unique in a bag: a robot counts its tasks from 1 again when its node starts again."""
    return f"{task.key.session}/{task.key.task}"


def _begun(task: BagTask) -> bool:
    """Whether the bag tells when; it may hold no more than an answer."""
    asked = any(round_.asked for round_ in task.rounds.values())
    return task.began is not None or task.ended is not None or asked


def _asked(task: BagTask) -> ChunkRequested:
    """The first request of a task that has one."""
    return next(a for r in task.rounds.values() for a in r.asked.values())


def _seed(task: BagTask) -> int:
    goal = task.began or (task.ended.goal if task.ended else None)
    return goal.seed if goal else _asked(task).seed


def _given_s(task: BagTask) -> float:
    if task.began is not None:
        return task.began.at_s
    if task.ended is not None:  # it began before the recorder did
        return max(0.0, task.ended.first_request_s)
    return _asked(task).at_s


def _task(number: int, task: BagTask, content: BagContent, length_s: float) -> TaskRecord:
    ended = task.ended
    goal = task.began or (ended.goal if ended else None)
    given_s = _given_s(task)
    if ended is None or goal is None:
        end_s, outcome = _unfinished(task, content, length_s)
        return TaskRecord(
            number=number,
            robot=task.key.robot,
            scene=(goal.scene or goal.kind) if goal else _asked(task).kind,
            seed=_seed(task),
            wanted_s=given_s,
            given_s=given_s,
            ended_s=end_s,
            outcome=outcome,
            task=task_name(task),
            policy=_policy(task),
        )
    return TaskRecord(
        number=number,
        robot=task.key.robot,
        scene=goal.scene or goal.kind,
        seed=goal.seed,
        wanted_s=given_s,
        given_s=given_s,
        ended_s=ended.at_s,
        outcome=ended.outcome,
        success=ended.success,
        duration_s=ended.duration_s,
        first_wait_s=ended.first_wait_s,
        stalled_s=ended.stalled_s,
        actions=ended.actions,
        round_latency_s=ended.round_latency_s,
        round_executed=ended.round_executed,
        refusals=ended.refusals,
        dropped=ended.dropped,
        guarded=ended.guarded,
        round_seam=ended.round_seam,
        mean_step=ended.mean_step,
        round_surprise=ended.round_surprise,
        task=task_name(task),
        policy=_policy(task),
    )


def _policy(task: BagTask) -> str:
    """That of the first chunk, as every other one of the task is; empty without a chunk."""
    answers = (round_.answer for _, round_ in sorted(task.rounds.items()))
    return next((one.policy for one in answers if one is not None and not one.refused), "")


def _unfinished(task: BagTask, content: BagContent, length_s: float) -> tuple[float, str]:
    """When and how a task without a result ended."""
    mine = [s for s in content.statuses if s.robot == task.key.robot]
    gone = [s.at_s for s in mine if s.session == task.key.session and s.state is RobotState.LEAVING]
    gone += [s.at_s for s in mine if s.session != task.key.session and s.at_s > _given_s(task)]
    return (min(gone), LOST) if gone else (length_s, CANCELED)


def _rounds(task: BagTask) -> Iterator[RoundRecord]:
    for number, found in sorted(task.rounds.items()):
        if found.asked:  # else it was asked for before the recorder came
            yield _round(task, number, found)


def _round(task: BagTask, number: int, found: BagRound) -> RoundRecord:
    answer = found.answer
    served = answer is not None and not answer.refused
    first = found.asked[min(found.asked)]
    observed = found.asked.get(answer.attempt, first) if answer is not None else first
    start_s, end_s = _execution(task, number)
    executed = task.executed(number)
    answered_s = answer.at_s if answer is not None and served else math.nan
    told_s = task.ended.round_latency_s if task.ended is not None else ()
    if number <= len(told_s) and (served or executed):  # else older bags tell when it was given up
        answered_s = first.at_s + told_s[number - 1]  # as the robot knows it
    return RoundRecord(
        robot=task.key.robot,
        task=task_name(task),
        round=number,
        attempts=max(found.asked) + 1,
        requested_s=first.at_s,
        answered_s=answered_s,
        exec_start_s=start_s,
        exec_end_s=end_s,
        requested_at=task.executed_at(first),
        observed_at=task.executed_at(observed),
        horizon=answer.horizon if answer is not None and served else 0,
        chunk_size=answer.chunk_size if answer is not None and served else 0,
        executed=executed,
        queued_s=answer.queued_s if answer else math.nan,
        compute_s=answer.compute_s if answer else math.nan,
        server_s=answer.server_s if answer else math.nan,
        batch_size=answer.batch_size if answer else 0,
        tier=answer.tier if answer else "",
        engine=answer.engine if answer else "",
        horizon_reason=answer.horizon_reason if answer else "",
        reason=answer.reason if answer else "",
    )


def _execution(task: BagTask, number: int) -> tuple[float, float]:
    """From the task's result; where there is none, from what later requests say."""
    if task.ended is not None:
        if number > len(task.ended.round_started_s):
            return math.nan, math.nan
        began, starts = task.ended.first_request_s, task.ended.round_started_s
        end = task.ended.round_ended_s[number - 1]
        # a late control period is followed by a short one: the next round may begin before its end
        after = min((s for s in starts[number:] if not math.isnan(s)), default=end)
        return began + starts[number - 1], began + min(end, after)
    reports = [
        asked
        for later in task.rounds.values()
        for asked in later.asked.values()
        if asked.executing == number
    ]
    started = [asked.started_s for asked in reports if not math.isnan(asked.started_s)]
    ended = [asked.ended_s for asked in reports if not math.isnan(asked.ended_s)]
    return _last(started), _last(ended)


def _last(values: Sequence[float]) -> float:
    return values[-1] if values else math.nan


def _natural(name: str) -> list[tuple[int, str]]:
    """arm_2 before arm_10."""
    return [
        (int(part or -1), part) if part.isdigit() else (-1, part)
        for part in re.split(r"(\d+)", name)
    ]
