"""What LeRobot's engine for real-time chunking tells of the chunk that its robot executes.

That engine keeps the chunks that a policy gives it in a queue of its own, and executes them in
another thread. With every call it hands back the rows that are left, without saying where they
begin; `rows_left` finds them in the chunk that they are of.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.exchange import Execution


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Arguments of `predict_action_chunk`."""

    rows: NDArray[np.float32] | None
    """`prev_chunk_left_over`, float32 [T, action_dim]: what is left, cut to T rows or with zeros up
    to T. None: nothing was executed yet."""
    delay: int
    """`inference_delay`: control periods until the new chunk is expected, in which the robot
    executes what is left."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What the robot executes while it is served."""

    left: int
    """Rows that were left when it asked."""
    at_ns: int
    """When it asked."""
    rows: NDArray[np.float32]
    """Those that it executes until the chunk is expected, float32 [L, action_dim]."""
    stalled_ns: int
    """In this task, until it asked."""

    def execution(self, told: Execution, now_ns: int) -> Execution:
        """told: what is known without the rows that are left."""
        left = max(0, self.left - (now_ns - self.at_ns) // max(1, told.period_ns))
        return replace(
            told,
            remaining=left,
            holding=not left,
            ended_ago_ns=0 if left else told.ended_ago_ns,
            stalled_ns=self.stalled_ns,
            seam=0.0,  # the engine does not say at which row it switches
        )

    def stalls_ns(self, period_ns: int, served_ns: int) -> int:
        """How long it had nothing to execute, if its chunk came then."""
        return max(0, served_ns - self.at_ns - self.left * period_ns)


def rows_left(chunk: NDArray[np.float32], told: LeftOver, expected: int) -> int | None:
    """How many rows at the end of a chunk, [H, action_dim], are not executed yet.

    expected: as many as it should be by the clock, which decides where rows repeat. None: what is
    told is of another chunk.
    """
    rows = told.rows
    if rows is None:
        return None
    height, length = len(chunk), len(rows)

    def fits(left: int) -> bool:
        known = min(left, length)
        begin = height - left
        return np.array_equal(rows[:known], chunk[begin : begin + known]) and not rows[known:].any()

    found = [left for left in range(height + 1) if fits(left)]
    return min(found, key=lambda left: abs(left - expected), default=None)
