"""What robots and serving nodes tell each other, as plain data of both sides.

Times are integer nanoseconds; in messages they are durations in seconds. What an engine gets of a
request has a type of its own, `transport.messages.InferRequest`: images have the names of the
policy's features, the noise is seeded, and nothing tells of execution or deadlines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.fit import RobotInterface


@dataclass(frozen=True, slots=True)
class Announcement:
    """A robot's status: it announces itself with the first one, later ones are heartbeats."""

    robot: str
    session: str
    task: str
    leaving: bool = False
    interface: RobotInterface | None = None
    """What it senses and accepts; None: it did not say."""
    policy: str = ""
    """That its requests ask for, as in `Request`."""


@dataclass(frozen=True, slots=True)
class RequestId:
    """Which request it is, and whose. Its answer has the same."""

    robot: str
    session: str
    task: str
    """Unique within the session."""
    round: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Execution:
    """What an arm is doing, as durations and counts (see ExecutionInfo.msg)."""

    round: int = 0
    started: bool = False
    holding: bool = False
    started_ago_ns: int = 0
    ended_ago_ns: int = 0
    """Since the last action's control period ended; 0 while executing."""
    executed: int = 0
    remaining: int = 0
    chunk_index: int = 0
    stalled_ns: int = 0
    period_ns: int = 0
    """Control period; 0: not known, and nothing was executed."""
    seam: float = 0.0
    """Jump from the last action before this round to its first one (see ExecutionInfo.msg)."""
    inferred: bool = False
    """From the times of its requests: the robot does not say what it executes, and waits for each
    answer, so that it has no newer observation meanwhile."""
    surprised: bool = False
    """The newest round was asked for early (see ExecutionInfo.msg)."""
    surprise: float = 0.0
    """How far the arm departs from its actions; where `surprised`: departed when it asked."""
    surprise_joint: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the world."""

    state: NDArray[np.float32]
    """float32 [state_dim]."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Camera key -> JPEG bytes."""
    taken_ns: int | None = None
    """Monotonic time at which the oldest of the images was taken, or arrived; None: all are of now,
    as those of a simulator that renders when it is asked. Only the robot's own host knows it."""

    @property
    def size_bytes(self) -> int:
        return self.state.nbytes + sum(len(image) for image in self.images.values())


def no_actions() -> NDArray[np.float32]:
    """No actions, float32 [0, 0]."""
    return np.zeros((0, 0), np.float32)


NOT_OBSERVED = Observation(np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True)
class Request:
    """Asks for one chunk, made from one observation."""

    id: RequestId
    instruction: str
    kind: str = ""
    """Class of the task, for per-class history."""
    horizon_policy: str = ""
    """Empty: the server's default."""
    seed: int = 0
    execution: Execution = field(default_factory=Execution)
    server: str = ""
    """Identity of the serving node that shall answer; empty: any."""
    observation: Observation = NOT_OBSERVED
    """Taken when the request is sent; with `earlier`, when the control period began."""
    observed_ago_ns: int = 0
    deadline_ns: int = 0
    """0: the server's default."""
    committed: NDArray[np.float32] = field(default_factory=no_actions, compare=False)
    """float32 [L, action_dim], robot units: what is executed from the observation
    on, until the chunk that is asked for follows. [0, 0]: nothing, or not told."""
    earlier: tuple[Observation, ...] = ()
    """Of the control periods just before `observation`, oldest first; empty where the policy reads
    one. Images have the keys of `observation`. With a `PolicyInterface.keyframe_stride`: those that
    were taken when a multiple of it had been executed, oldest first."""
    task_actions: int = 0
    """Executed in the task when the observation was taken; told with `executed`."""
    executed: NDArray[np.float32] = field(default_factory=no_actions, compare=False)
    """float32 [L, action_dim], robot units: the last ones of those. [0, 0]: none, or not told."""
    policy: str = ""
    """Name of one of the server's policies, or type and fingerprint of its weights; empty: the
    server's default."""

    @property
    def size_bytes(self) -> int:
        """Of all its observations."""
        return sum(seen.size_bytes for seen in (*self.earlier, self.observation))


@dataclass(frozen=True, slots=True)
class WholeChunk:
    """What a policy answered before it was trimmed; it does not travel to robots."""

    chunk: NDArray[np.float32]
    """float32 [N, D], in the robot's units; shared, not copied."""
    updates: NDArray[np.float32]
    """float32 [K, N, D], as in InferResult; shared, not copied."""
    scale: tuple[float, ...] | None
    """As in EngineDescription.action_scale."""
    horizon_policy: str
    """That trimmed it, also where the request named none."""


@dataclass(frozen=True, slots=True)
class Actions:
    """A trimmed chunk and how it came about."""

    actions: NDArray[np.float32]
    """float32 [horizon, action_dim], in the robot's units; index 0 belongs to the moment of the
    observation."""
    confidence: NDArray[np.float32]
    """float32 [horizon]."""
    horizon_reason: str = ""
    chunk_size: int = 0
    queued_ns: int = 0
    compute_ns: int = 0
    server_ns: int = 0
    """The server's share of the round trip."""
    engine_latency_ns: int = 0
    """What the server needs for a round lately, at most two full batches; 0: unknown."""
    batch_size: int = 0
    tier: str = ""
    engine: str = ""
    policy: str = ""
    """Type and fingerprint of the weights."""
    reason: str = ""
    """Of the decision that dispatched the request."""
    request_period_ns: int = 0
    """Least time from one round's first request of the robot to the next one's; 0: no limit."""
    whole: WholeChunk | None = None
    """In a serving node only."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """No actions, and why."""

    code: RefusalCode
    reason: str
    retry_after_ns: int = 0
    """0: do not send this request again."""


@dataclass(frozen=True, slots=True)
class Refetch:
    """Asks for the same round again, with a newer observation."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes back for one request."""

    id: RequestId
    """Of the request."""
    body: Actions | Refusal | Refetch
    server: str = ""
    """Identity of the serving node that answers."""
