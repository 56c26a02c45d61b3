"""Why robots stood still in the middle of a task: every wait for actions, split by cause.

A wait is the time between the last action of one round and the first of the next. It is charged to
what would have made it shorter, one cause after the other, each with at most what is left:

1. `late request`: the part before the round was requested at all.
2. `asked again`: a refetch, a refusal or silence, after which the same round was requested again.
3. `queueing`: the request lay at the server without an engine working on it.
4. `compute`: the engine's time for the batch.
5. `network`: what is left of the latency between request and chunk, both ways.
6. `robot`: from having the chunk to moving.

So queueing is charged before compute and network: a robot asks early enough to hide the latter two
(Dai et al. §3.2), and what it cannot hide is what a loaded server adds. Waits for a round that
never brought an action until the task ended are `unanswered`, or `refused` where the server said
why. The wait for a task's first action is `first wait`, whole; waits for rounds whose request or
chunk was not recorded are `unknown`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import isnan
from statistics import median

from kairos_ros.recording.runs.run import FleetRun, RoundRecord

CAUSES = (
    "first wait",
    "queueing",
    "compute",
    "network",
    "asked again",
    "late request",
    "robot",
    "refused",
    "unanswered",
    "unknown",
)


def stall_causes(run: FleetRun) -> dict[str, float]:
    """Seconds that all robots together waited for actions, by cause, in the order of `CAUSES`.

    Empty where rounds were not recorded. Waits of tasks whose record has no id count up to their
    last chunk only.
    """
    if not run.rounds:
        return {}
    network_s = _network_s(run.rounds)
    ended_s = {(task.robot, task.task): task.ended_s for task in run.tasks if task.task}
    tasks: defaultdict[tuple[str, str], list[RoundRecord]] = defaultdict(list)
    for record in run.rounds:
        tasks[record.robot, record.task].append(record)
    waited_s = dict.fromkeys(CAUSES, 0.0)
    for key, rounds in tasks.items():
        for cause, seconds in _waits(rounds, ended_s.get(key), network_s):
            waited_s[cause] += seconds
    return waited_s


def _waits(
    rounds: Sequence[RoundRecord], task_ended_s: float | None, network_s: dict[str, float]
) -> Iterable[tuple[str, float]]:
    rounds = sorted(rounds, key=lambda r: r.round)
    still_since_s: float | None = None
    for record in rounds:
        if not record.executed or isnan(record.exec_start_s + record.exec_end_s):
            continue
        if still_since_s is None:
            first_s = rounds[0].requested_s
            yield "first wait", 0.0 if isnan(first_s) else max(0.0, record.exec_start_s - first_s)
        else:
            yield from _split(record, still_since_s, network_s.get(record.robot, 0.0))
        still_since_s = record.exec_end_s
    last = rounds[-1]
    if last.executed or task_ended_s is None or not isnan(last.answered_s):
        return
    since_s = last.requested_s if still_since_s is None else still_since_s
    yield "refused" if last.reason else "unanswered", max(0.0, task_ended_s - since_s)


def _split(
    record: RoundRecord, still_since_s: float, network_s: float
) -> Iterable[tuple[str, float]]:
    left_s = max(0.0, record.exec_start_s - still_since_s)
    if isnan(record.latency_s):
        yield "unknown", left_s
        return
    again_s = 0.0
    if record.attempts > 1:
        again_s = max(0.0, record.latency_s - record.server_s - network_s)
    in_server_s = min(record.latency_s - again_s, record.server_s)
    for cause, seconds in (
        ("late request", max(0.0, record.requested_s - still_since_s)),
        ("asked again", again_s),
        ("queueing", max(0.0, in_server_s - record.compute_s)),
        ("compute", min(in_server_s, record.compute_s)),
        ("network", record.latency_s - again_s - in_server_s),
    ):
        part_s = min(left_s, seconds)
        yield cause, part_s
        left_s -= part_s
    yield "robot", left_s


def _network_s(rounds: Iterable[RoundRecord]) -> dict[str, float]:
    """Usual network time of each robot, from the rounds that were asked for once."""
    measured: defaultdict[str, list[float]] = defaultdict(list)
    for record in rounds:
        if record.attempts == 1 and not isnan(record.latency_s):
            measured[record.robot].append(max(0.0, record.latency_s - record.server_s))
    return {robot: median(values) for robot, values in measured.items()}
