"""How old the observation behind an action is when the action is executed."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from kairos_ros.evaluation.run import RoundRecord


def observation_ages_s(rounds: Sequence[RoundRecord]) -> np.ndarray:
    """Seconds from observing to executing, float64 [A], one per executed action of all rounds.

    A round that was asked for once was observed when it was requested. After a refetch, the
    observation is as old as `observed_at` says: taken at the end of the last action before it, and
    not before the first request, so that its age is exact while the robot moved and an upper bound
    where it waited.
    """
    tasks: defaultdict[tuple[str, str], list[RoundRecord]] = defaultdict(list)
    for record in rounds:
        tasks[record.robot, record.task].append(record)
    ages = [age for group in tasks.values() for age in _ages_of_task(group)]
    return np.concatenate(ages) if ages else np.empty(0)


def action_starts_s(record: RoundRecord) -> np.ndarray:
    """When each executed action of a round began, float64 [executed]; evenly spaced."""
    span_s = record.exec_end_s - record.exec_start_s
    return record.exec_start_s + span_s * np.arange(record.executed) / max(1, record.executed)


def _ages_of_task(rounds: Sequence[RoundRecord]) -> list[np.ndarray]:
    ages = []
    ends_s = np.empty(0)
    for record in sorted(rounds, key=lambda r: r.round):
        if not record.executed:
            continue
        starts_s = action_starts_s(record)
        observed_s = record.requested_s
        if record.attempts > 1 and 0 < record.observed_at <= len(ends_s):
            observed_s = max(observed_s, float(ends_s[record.observed_at - 1]))
        ages.append(starts_s - observed_s)
        ends_s = np.concatenate((ends_s, starts_s[1:], [record.exec_end_s]))
    return [age[np.isfinite(age)] for age in ages]
