"""How old the observation behind an action is when the action is executed."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from kairos_ros.recording.runs.run import RoundRecord


def observation_ages_s(rounds: Sequence[RoundRecord]) -> np.ndarray:
    """Seconds from observing to executing, float64 [A], of every executed action of all rounds.

    A round that was asked for once was observed when it was requested. After a refetch, the
    observation is as old as `observed_at` says: taken at the end of the last action before it, and
    not before the first request, so that its age is exact while the robot moved and an upper bound
    where it waited. In the order of `rounds`; those of which a time was not recorded are left out.
    """
    tasks: defaultdict[tuple[str, str], list[RoundRecord]] = defaultdict(list)
    for record in rounds:
        if record.executed:
            tasks[record.robot, record.task].append(record)
    moved = [
        (_observed_s(record, tasks), record.exec_start_s, record.exec_end_s, record.executed)
        for record in rounds
        if record.executed
    ]
    table = np.array(moved, float).reshape(-1, 4)
    observed_s, start_s, end_s, executed = table[np.isfinite(table).all(axis=1)].T
    counts = executed.astype(int)
    index = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    ages_s: np.ndarray = np.repeat(start_s - observed_s, counts) + index * np.repeat(
        (end_s - start_s) / executed, counts
    )
    return ages_s


def action_starts_s(record: RoundRecord) -> np.ndarray:
    """When each executed action of a round began, float64 [executed]; evenly spaced."""
    span_s = record.exec_end_s - record.exec_start_s
    return record.exec_start_s + span_s * np.arange(record.executed) / max(1, record.executed)


def _observed_s(
    record: RoundRecord, tasks: Mapping[tuple[str, str], Sequence[RoundRecord]]
) -> float:
    """When the chunk's observation was taken; `tasks` hold the rounds that executed actions."""
    if record.attempts <= 1:
        return record.requested_s
    before = record.observed_at
    for earlier in sorted(tasks[record.robot, record.task], key=lambda r: r.round):
        if earlier.round >= record.round:
            break
        if 0 < before <= earlier.executed:
            span_s = earlier.exec_end_s - earlier.exec_start_s
            ended_s = earlier.exec_start_s + span_s * before / earlier.executed
            return max(record.requested_s, ended_s)
        before -= earlier.executed
    return record.requested_s
