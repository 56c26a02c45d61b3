"""Did the rounds of a replay come out as they were recorded?"""

from collections.abc import Mapping
from dataclasses import dataclass

from kairos_ros.recording.runs.run import FleetRun, RoundRecord
from kairos_ros.recording.runs.trace import Trace


@dataclass(frozen=True, slots=True)
class Parity:
    """Of finished tasks. All counts in rounds."""

    recorded: int
    replayed: int
    """Those that were recorded and have come again."""
    same_request: int
    """Requested at the recorded action index."""
    same_horizon: int
    """Cut to the recorded length by the server."""
    latency_ratio: float | None
    """Mean latency of the replayed rounds over that of the recorded ones; None without any."""

    @property
    def exact(self) -> bool:
        """Same rounds, request indices and horizons."""
        return self.recorded == self.replayed == self.same_request == self.same_horizon


def parity(run: FleetRun, traces: Mapping[int, Trace]) -> Parity:
    """Compares `run` with what was recorded.

    traces: of every task, by its number. Recorded rounds of which nothing was executed are left
    out: whether a chunk is there before the task ends, when nobody needs it any more, is chance.
    """
    rounds: dict[tuple[str, str], list[RoundRecord]] = {}
    for record in run.rounds:
        rounds.setdefault((record.robot, record.task), []).append(record)
    recorded = replayed = same_request = same_horizon = 0
    before_s = now_s = 0.0
    for task in run.tasks:
        if not task.finished:
            continue
        came = {r.round: r for r in rounds.get((task.robot, task.task), []) if r.horizon}
        for wanted in traces[task.number].rounds:
            if not wanted.executed:
                continue
            recorded += 1
            again = came.get(wanted.round)
            if again is None:
                continue
            replayed += 1
            same_request += again.requested_at == wanted.requested_at
            same_horizon += again.horizon == wanted.horizon
            if wanted.latency_s is not None:
                before_s += wanted.latency_s
                now_s += again.latency_s
    return Parity(
        recorded, replayed, same_request, same_horizon, now_s / before_s if before_s else None
    )
