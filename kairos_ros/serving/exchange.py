"""What robots and the serving side say to each other, as plain data (the messages without ROS)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import RefusalCode
from kairos_ros.transport.messages import InferResult


@dataclass(frozen=True, slots=True)
class Announcement:
    """A robot's status: it announces itself with the first one, later ones are heartbeats."""

    robot: str
    session: str
    task: str
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Execution:
    """What a robot was doing when it sent a request; durations in seconds before sending."""

    round: int = 0
    started: bool = False
    started_ago_s: float = 0.0
    ended_ago_s: float = 0.0
    actions_remaining: int = 0
    chunk_index: int = 0
    control_rate_hz: float = 30.0


@dataclass(frozen=True, slots=True)
class Query:
    """A request for one chunk, made from one observation."""

    robot: str
    session: str
    task: str
    round: int
    attempt: int
    instruction: str
    kind: str
    """Class of the task, for per-class history."""
    state: NDArray[np.float32]
    """float32 [state_dim]."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Camera key -> JPEG bytes."""
    execution: Execution = field(default_factory=Execution)
    horizon: str = ""
    """Horizon policy, empty for the server's default."""
    deadline_s: float = 0.0
    observed_ago_s: float = 0.0
    seed: int = 0

    @property
    def size_bytes(self) -> int:
        return self.state.nbytes + sum(len(image) for image in self.images.values())


@dataclass(frozen=True, slots=True)
class Actions:
    """A trimmed chunk and how it came about."""

    actions: NDArray[np.float32]
    """float32 [horizon, action_dim], in the robot's units."""
    confidence: NDArray[np.float32]
    """float32 [horizon]."""
    horizon_reason: str
    chunk_size: int
    queued_s: float
    compute_s: float
    server_s: float
    engine_latency_s: float
    batch_size: int
    tier: str
    engine: str
    policy: str
    reason: str
    whole: InferResult
    """What was trimmed; shared, not copied."""
    scale: tuple[float, ...] | None
    """As in EngineDescription.action_scale."""
    horizon_policy: str
    """That trimmed it, also where the request named none."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """No actions, and why."""

    code: RefusalCode
    reason: str
    retry_after_s: float = 0.0
    """0: do not send this request again."""


@dataclass(frozen=True, slots=True)
class Refetch:
    """Please send the same round again, with a newer observation."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to one query; the robot, session, task, round and attempt are echoed from it."""

    robot: str
    session: str
    task: str
    round: int
    attempt: int
    body: Actions | Refusal | Refetch


def answer(query: Query, body: Actions | Refusal | Refetch) -> Answer:
    """Addresses `body` to whoever sent `query`, and to nobody else."""
    return Answer(query.robot, query.session, query.task, query.round, query.attempt, body)
