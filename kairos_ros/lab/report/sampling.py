"""What of a large run is drawn one by one: some robots, and of those a stretch of time."""

from dataclasses import dataclass
from math import isnan

from kairos_ros.recording.runs.run import FleetRun, RoundRecord

MOST_ROBOTS = 12
MOST_ROUNDS = 1200


@dataclass(frozen=True, slots=True)
class Sample:
    robots: tuple[str, ...]
    start_s: float
    end_s: float
    rounds: tuple[RoundRecord, ...]
    """Requested in that time by those robots, in this order."""
    note: str
    """What was left out; empty where nothing was."""


def sample(run: FleetRun) -> Sample:
    """Evenly spaced robots, and the middle of the run, as long as there are not too many rounds."""
    count = min(len(run.robots), MOST_ROBOTS)
    robots = tuple(run.robots[i * len(run.robots) // count] for i in range(count))
    chosen = set(robots)
    rounds = sorted(
        (r for r in run.rounds if r.robot in chosen and not isnan(r.requested_s)),
        key=lambda r: r.requested_s,
    )
    start_s, end_s = 0.0, run.length_s
    if len(rounds) > MOST_ROUNDS:
        at = (len(rounds) - MOST_ROUNDS) // 2
        rounds = rounds[at : at + MOST_ROUNDS]
        start_s, end_s = rounds[0].requested_s, rounds[-1].requested_s
    notes = []
    if count < len(run.robots):
        notes.append(f"{len(robots)} of {len(run.robots)} robots")
    if (start_s, end_s) != (0.0, run.length_s):
        notes.append(
            f"from {start_s:.0f} s to {end_s:.0f} s of {run.length_s:.0f} s, "
            f"{len(rounds):,} of {len(run.rounds):,} rounds"
        )
    return Sample(robots, start_s, end_s, tuple(rounds), ", ".join(notes))
