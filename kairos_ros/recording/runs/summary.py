"""What a fleet's run came to: metrics from plain task records. No ROS, no clock.

End-to-end latency of a task runs from its first request to its last action (Dai et al. §5.1);
waiting for a free robot is reported separately, as queueing. A chunk's latency runs from sending
the request to receiving the chunk, on the robot's clock; a round that was given up has none.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np

from kairos_ros.recording.runs.observation_age import observation_ages_s
from kairos_ros.recording.runs.run import FleetRun, TaskRecord


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is distributed; percentiles by linear interpolation."""

    count: int
    mean: float
    p25: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Of the finished tasks that have something in common."""

    tasks: int
    succeeded: int
    latency_mean_s: float
    rounds_mean: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Metrics of one run. Finished tasks only, except `unfinished` and `observation_age_s`."""

    tasks: int
    succeeded: int
    success: float | None
    success_95: tuple[float, float] | None
    """Wilson's 95 % interval."""
    unfinished: int
    """Canceled at the end of the run, or lost with their robot."""
    scenes: dict[str, GroupResult]
    policies: dict[str, GroupResult]
    """By type and fingerprint of the weights, where tasks ran on several; else empty."""
    latency_s: Spread | None
    queueing_s: Spread | None
    """Arrival of a task to a robot taking it."""
    stall_fraction: float | None
    """Share of task time held for want of actions."""
    mid_task_stall_fraction: float | None
    """The same without the first wait, in both the held and the whole time."""
    mean_horizon: float | None
    """Executed actions per round that executed any."""
    rounds_per_task: float | None
    """Inferences per task, with the last one where the task ended before it was executed."""
    chunk_latency_s: Spread | None
    observation_age_s: Spread | None
    """From observing to executing, over all executed actions; None without recorded rounds."""
    seam: float | None
    """Jump of the action where one chunk follows another, over the mean step between two actions
    of one chunk, averaged over switches; None where no robot told."""
    surprises: int
    """Rounds asked for early, because the arm did not move as its actions say."""
    actions: int
    tasks_per_minute: float
    """Tasks finished while new ones were given, over that time."""
    refusals: int
    dropped: int
    guarded: int


def summarise(run: FleetRun) -> Summary:
    """The metrics of `run`. Quantities without data are None."""
    done = [task for task in run.tasks if task.finished]
    succeeded = sum(task.success for task in done)
    time_s = sum(task.duration_s for task in done)
    first_s = sum(task.first_wait_s for task in done)
    stalled_s = sum(task.stalled_s for task in done)
    rounds = [n for task in done for n in task.round_executed]
    policies = _by([task for task in done if task.policy], lambda task: task.policy)
    return Summary(
        tasks=len(done),
        succeeded=succeeded,
        success=_ratio(succeeded, len(done)),
        success_95=wilson_95(succeeded, len(done)) if done else None,
        unfinished=len(run.tasks) - len(done),
        scenes=_by(done, lambda task: task.scene),
        policies=policies if len(policies) > 1 else {},
        latency_s=spread(task.duration_s for task in done),
        queueing_s=spread(task.given_s - task.wanted_s for task in done),
        stall_fraction=_ratio(stalled_s, time_s),
        mid_task_stall_fraction=_ratio(stalled_s - first_s, time_s - first_s),
        mean_horizon=_ratio(sum(rounds), sum(n > 0 for n in rounds)),
        rounds_per_task=_ratio(len(rounds), len(done)),
        chunk_latency_s=spread(s for t in done for s in t.round_latency_s if not isnan(s)),
        observation_age_s=spread(observation_ages_s(run.rounds)),
        seam=_seam(done),
        surprises=sum(score > 0 for task in done for score in task.round_surprise),
        actions=sum(task.actions for task in done),
        tasks_per_minute=_throughput(done, run.open_s),
        refusals=sum(task.refusals for task in done),
        dropped=sum(task.dropped for task in done),
        guarded=sum(task.guarded for task in done),
    )


def spread(values: Iterable[float]) -> Spread | None:
    """None without values."""
    data = np.fromiter(values, float)
    if not data.size:
        return None
    p25, p50, p95 = (float(p) for p in np.percentile(data, (25, 50, 95)))
    return Spread(data.size, float(data.mean()), p25, p50, p95)


def wilson_95(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion, `trials` > 0."""
    z2 = 1.959964**2
    p = successes / trials
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = (z2 * (p * (1 - p) / trials + z2 / (4 * trials**2))) ** 0.5 / (1 + z2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def _seam(done: Sequence[TaskRecord]) -> float | None:
    told = [
        seam / task.mean_step
        for task in done
        if task.mean_step > 0
        for seam in task.round_seam
        if not isnan(seam)
    ]
    return sum(told) / len(told) if told else None


def _by(done: Sequence[TaskRecord], key: Callable[[TaskRecord], str]) -> dict[str, GroupResult]:
    groups: dict[str, list[TaskRecord]] = {}
    for task in done:
        groups.setdefault(key(task), []).append(task)
    return {
        name: GroupResult(
            tasks=len(tasks),
            succeeded=sum(t.success for t in tasks),
            latency_mean_s=sum(t.duration_s for t in tasks) / len(tasks),
            rounds_mean=sum(len(t.round_executed) for t in tasks) / len(tasks),
        )
        for name, tasks in sorted(groups.items())
    }


def _throughput(done: Sequence[TaskRecord], open_s: Sequence[tuple[float, float]]) -> float:
    """Tasks per minute, without the end of a run, when robots run out of tasks one by one."""
    ended = sum(start <= task.ended_s <= end for task in done for start, end in open_s)
    time_s = sum(end - start for start, end in open_s)
    return 60.0 * ended / time_s if time_s else 0.0


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
