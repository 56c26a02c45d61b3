"""What robots and serving node said to each other, as the drill received it: plain data.

Times are seconds of this host's monotonic clock, when the message reached the drill.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from kairos_ros.telemetry.events import TaskKey


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A robot's request."""

    at_s: float
    key: TaskKey
    round: int
    attempt: int
    state: np.ndarray
    """float32 [state_dim]: what the robot saw."""
    server: str = ""
    """Whom it asked; empty: anybody."""

    def is_for(self, answered: "SeenChunk") -> bool:
        """Whether a chunk of this task is from the server that was asked."""
        return self.server in ("", answered.server)


@dataclass(frozen=True, slots=True)
class SeenChunk:
    """A chunk that the serving node sent. Refusals and re-fetches are none."""

    at_s: float
    key: TaskKey
    round: int
    attempt: int
    actions: np.ndarray
    """float32 [horizon, action_dim]; index 0 belongs to the moment of the observation."""
    tier: str
    engine: str
    server: str = ""
    """The serving node that sent it, as it says."""
    policy: str = ""
    """Type and fingerprint of the weights that it is of, as the serving node says."""

    @property
    def digest(self) -> str:
        """Of the actions: the first 12 digits of their SHA-256."""
        return sha256(np.ascontiguousarray(self.actions, "<f4").tobytes()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """A task as its robot says that it ended."""

    at_s: float
    key: TaskKey
    outcome: str
    success: bool
    actions: int
    dropped: int
    """Chunks that the robot did not use: late ones, repeated ones, those for others."""
    executed: tuple[int, ...] = ()
    """Actions executed of every round that was served, in order."""


@dataclass(frozen=True, slots=True)
class SeenServer:
    """What a serving node says about itself."""

    at_s: float
    pid: int
    state: int
    """As in ServerStatus.msg."""
    reason: str
    policy: str = ""
    """Empty before an engine was up."""


@dataclass(slots=True)
class Exchange:
    """Everything received since the drill began, in order of arrival."""

    asked: dict[TaskKey, list[SeenRequest]] = field(default_factory=lambda: defaultdict(list))
    answered: dict[TaskKey, list[SeenChunk]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[TaskKey, TaskEnd] = field(default_factory=dict)
    began_s: dict[TaskKey, float] = field(default_factory=dict)
    pulses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Robot -> when it told what it executes; only where somebody listens to that."""
    calls: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    """Robot -> when it called a human, and why; only where somebody listens to that."""
    servers: dict[str, SeenServer] = field(default_factory=dict)
    """Newest word of every serving node, by its identity."""
    strange: dict[str, str] = field(default_factory=dict)
    """Robot -> publishers on its topics that it finds strange, as in its newest diagnostics."""

    def answers(self, key: TaskKey) -> list[SeenChunk]:
        """The chunks of a task that are from servers which it asked."""
        asked = {request.server for request in self.asked.get(key, ())}
        chunks = self.answered.get(key, [])
        return [chunk for chunk in chunks if "" in asked or not asked or chunk.server in asked]

    def foreign(self, since_s: float) -> list[SeenChunk]:
        """The chunks from servers that the robots did not ask."""
        return [
            chunk
            for key, chunks in self.answered.items()
            for own in [{request.server for request in self.asked.get(key, ())}]
            for chunk in chunks
            if chunk.at_s >= since_s and "" not in own and chunk.server not in own
        ]

    def sessions(self, robot: str) -> Sequence[str]:
        """Of one robot, in order: its node was started again for each."""
        keys = [*self.began_s, *self.asked]
        return tuple(dict.fromkeys(key.session for key in keys if key.robot == robot))

    def oldest_open_s(self) -> float:
        """When the oldest task began that has not ended, of every robot's newest session."""
        newest = {key.robot: key.session for key in [*self.began_s, *self.asked]}
        begun = {key: requests[0].at_s for key, requests in self.asked.items() if requests}
        mine = {k: s for k, s in (begun | self.began_s).items() if newest[k.robot] == k.session}
        newest_task = {key.robot: key for key in mine}
        return min(
            (
                s
                for key, s in mine.items()
                if key not in self.ended and newest_task[key.robot] == key
            ),
            default=math.inf,
        )

    def chunks(self, since_s: float, until_s: float, robot: str = "") -> Iterable[SeenChunk]:
        """Chunks that came in a span of time, to one robot or to all."""
        return (
            answered
            for key in list(self.answered)
            if not robot or key.robot == robot
            for answered in self.answers(key)
            if since_s <= answered.at_s < until_s
        )
