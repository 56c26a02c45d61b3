"""What serving nodes and engines tell each other; `message_codec` writes and reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.exchange import Observation, no_actions
from kairos_ros.core.language.load import LanguageLoad


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One robot asks for one chunk. `robot` to `attempt` name it, and its task for an engine that
    keeps states of tasks; others do not read them."""

    robot: str
    session: str
    task: str
    round: int
    attempt: int
    seed: int
    """Seeds the sampler's noise for this row only, 0 <= seed < 2**64."""
    instruction: str
    state: NDArray[np.float32]
    """float32 [state_dim]."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Policy feature name, for example `observation.images.top` -> JPEG (or PNG) bytes."""
    shrunk: frozenset[str] = frozenset()
    """Names of images that were made smaller on the way; the engine enlarges them again."""
    committed: NDArray[np.float32] = field(default_factory=no_actions)
    """float32 [L, D], robot units: what the robot executes from the observation on, until the chunk
    that is asked for follows."""
    earlier: tuple[Observation, ...] = ()
    """Of the control periods just before, oldest first, with images of the same names. Where there
    are fewer than the policy reads, the engine repeats the oldest. With a `keyframe_stride`: as
    there."""
    task_actions: int = 0
    """Executed in the task when the observation was taken."""
    executed: NDArray[np.float32] = field(default_factory=no_actions)
    """float32 [L, D], robot units: the last of those, for a policy with a `keyframe_stride`."""

    @property
    def observations(self) -> tuple[Observation, ...]:
        """All of them, oldest first."""
        return (*self.earlier, Observation(self.state, self.images))


@dataclass(frozen=True, slots=True)
class InferResult:
    """A whole chunk and how the sampler got there."""

    chunk: NDArray[np.float32]
    """float32 [N, D], postprocessed: in the units of the robot's actions."""
    updates: NDArray[np.float32]
    """float32 [K, N, D]: the change that sampler step k made to action i, in the model's
    (normalised) action space, only the robot's own action dimensions (Dai et al. §3.1). K is 0 for
    a policy that answers at once, such as ACT."""
    begun_anew: str = ""
    """Why a policy that keeps a state of every task began it anew in the middle of this one."""


@dataclass(frozen=True, slots=True)
class InferFailure:
    """Why one request of a batch got no chunk; its batch-mates are not touched."""

    code: RefusalCode
    reason: str


InferOutcome = InferResult | InferFailure


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """What an engine serves: all that a request can be checked against before it is queued."""

    policy_id: str
    """Policy type and the first 12 hex digits of the SHA-256 of its configuration and weights."""
    policy_type: str
    state_dim: int
    images: Mapping[str, tuple[int, int]]
    """Policy feature name -> (height_px, width_px) that it was trained on."""
    action_dim: int
    chunk_size: int
    steps: int
    """Sampler steps K, 0 for a policy without; `InferResult.updates` has one entry per step."""
    instructions: tuple[str, ...] | None
    """The closed set of instructions, or None where free text (or none at all) is read."""
    device: str
    dtype: str
    max_batch: int
    action_scale: tuple[float, ...] | None = None
    """Action units per normalised unit, [action_dim]; None where the chunk is normalised itself."""
    any_image_size: bool = False
    """The policy resizes pictures itself, without distortion."""
    images_optional: bool = False
    """The policy does without some of its images, but not without all."""
    observations: int = 1
    """That the policy reads, one control period apart, the newest included."""
    keyframe_stride: int = 0
    """0: observations are one control period apart, and the policy keeps nothing of a task. Else it
    keeps a state of every task, and reads the observations that were taken whenever so many actions
    had been executed since the last one, besides the newest."""
    history_bytes: int = 0
    """What an engine must be sent with a request of a task whose last round it did not answer, for
    a policy that conditions on past observations; 0: stateless."""
    warmup: tuple[tuple[int, float], ...] = ()
    """(batch size, seconds) measured while warming up, ascending from 1: the engine's profile
    until `kairos profile` has measured a better one."""
    eager: tuple[tuple[int, float], ...] = ()
    """As `warmup`, of the same policy without compilation; empty where it was not compiled."""
    memory_mib: int = 0
    """Most memory that its worker has taken until it was warm, of the device that computes, with
    what states of tasks may come to take; 0: it is not known."""
    language: bool = False
    """It answers questions in words (`language_messages`)."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The worker's heartbeat. `state` is loading, ready, stopping, refused, or unserved where its
    registry has no policy of the name that was asked for."""

    state: str
    stage: str
    """What it is doing (loading) or why it gave up (refused, unserved)."""
    busy_batch: int | None
    """The running batch, if it is one of the client that asks."""
    busy_s: float
    """For how long the running batch (or, before ready, the loading stage) has run."""
    worker: str = ""
    """New with every start of the worker."""
    others: int = 0
    """Batches of other clients that run or wait."""
    ping: int | None = None
    """The number of the ping that this answers."""
    replicas: int = 1
    """Batches that are computed at once; a pool's replicas that are ready now."""
    language: LanguageLoad | None = None
    """Of the policy that was asked about; None: it answers no questions."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Outcomes in the order of the batch's requests."""

    batch: int
    compute_s: float
    outcomes: tuple[InferOutcome, ...]
    prepare_s: float = 0.0
    """What checking and decoding took, before `compute_s` began."""


@dataclass(frozen=True, slots=True)
class BatchError:
    """A message or a batch was refused as a whole. `batch` is None where it could not be read."""

    batch: int | None
    code: RefusalCode
    reason: str
