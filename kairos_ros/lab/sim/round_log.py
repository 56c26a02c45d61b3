"""What a virtual robot notes about a round while it lasts."""

import math
from dataclasses import dataclass

from kairos_ros.core.exchange import Actions
from kairos_ros.core.execution.run import Chunk
from kairos_ros.recording.runs.run import RoundRecord


@dataclass(slots=True)
class RoundLog:
    round: int
    requested_ns: int
    requested_at: int
    attempts: int = 0
    answered_ns: int | None = None
    observed_at: int = 0
    body: Actions | None = None
    chunk: Chunk | None = None
    """None for a chunk that came too late, or never."""
    refusal: str = ""
    """Reason of the newest one."""

    def record(self, robot: str, task: str, epoch_ns: int, period_ns: int) -> RoundRecord:
        """The round as it came out. A round without an answer was observed when it was asked."""
        body, chunk = self.body, self.chunk
        executed = chunk.executed if chunk else 0
        begun, ended = math.nan, math.nan
        if chunk and executed:
            begun = (chunk.first_ns - epoch_ns) / 1e9
            ended = (chunk.last_ns + period_ns - epoch_ns) / 1e9
        answered = math.nan if self.answered_ns is None else (self.answered_ns - epoch_ns) / 1e9
        return RoundRecord(
            robot=robot,
            task=task,
            round=self.round,
            attempts=self.attempts,
            requested_s=(self.requested_ns - epoch_ns) / 1e9,
            answered_s=answered,
            exec_start_s=begun,
            exec_end_s=ended,
            requested_at=self.requested_at,
            observed_at=self.observed_at if body else self.requested_at,
            horizon=len(body.actions) if body else 0,
            chunk_size=body.chunk_size if body else 0,
            executed=executed,
            queued_s=body.queued_ns / 1e9 if body else math.nan,
            compute_s=body.compute_ns / 1e9 if body else math.nan,
            server_s=body.server_ns / 1e9 if body else math.nan,
            batch_size=body.batch_size if body else 0,
            tier=body.tier if body else "",
            engine=body.engine if body else "",
            horizon_reason=body.horizon_reason if body else "",
            reason=body.reason if body else self.refusal,
        )
