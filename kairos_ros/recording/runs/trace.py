"""Traces: tasks recorded one by one, to replay and simulate with many others (Dai et al. §5.1).

A trace is what a policy did along one task: at which action index each round was requested, what
the robot observed there, the chunk and how the sampler got to it, the horizon, and how much of it
was executed. `trace_file` reads and writes them.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TraceRound:
    """One observation, inference and execution."""

    round: int
    requested_at: int
    """Actions of the task executed when the round was first requested."""
    observed_at: int
    """The same at the observation that the chunk was made from, >= requested_at."""
    horizon: int
    """Actions sent, counted from the observation."""
    executed: int
    latency_s: float | None = None
    """First request sent to chunk received; None where the round was given up before, or nobody
    measured."""
    state: np.ndarray | None = None
    """float32 [S], the observation; images stay in the bag."""
    chunk: np.ndarray | None = None
    """float32 [N, D], whole, in the robot's units."""
    step_norms: np.ndarray | None = None
    """float32 [K, N], length of the change of action i by sampler step k (Dai et al. §3.1)."""
    updates: np.ndarray | None = None
    """float32 [K, N, D], where recorded in full."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One task, from its first request to its last action. Rounds ascend in `observed_at`."""

    name: str
    """Unique within a file."""
    kind: str
    """Class of the task, as in ChunkRequest.task_kind."""
    instruction: str
    seed: int
    control_rate_hz: float
    chunk_size: int
    action_dim: int
    policy: str
    """Policy id, as in EngineDescription."""
    horizon_policy: str
    """That trimmed the recorded chunks."""
    success: bool
    duration_s: float
    rounds: tuple[TraceRound, ...]
    scale: np.ndarray | None = None
    """float32 [D], action units per normalised unit; None: the chunk is normalised."""

    @property
    def actions(self) -> int:
        """Executed in the whole task."""
        return sum(r.executed for r in self.rounds)

    def round_at(self, index: int) -> TraceRound:
        """The newest round observed when `index` actions were executed, or before."""
        at = bisect_right(self.rounds, index, key=lambda r: r.observed_at)
        return self.rounds[max(0, at - 1)]
