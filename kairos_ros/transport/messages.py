"""What travels between the serving node and an engine, as plain data. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import RefusalCode


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One robot asks for one chunk. Engines do not read `robot` to `attempt`: they name it."""

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


@dataclass(frozen=True, slots=True)
class InferResult:
    """A whole chunk and how the sampler got there."""

    chunk: NDArray[np.float32]
    """float32 [N, D], postprocessed: in the units of the robot's actions."""
    updates: NDArray[np.float32]
    """float32 [K, N, D]: the change that sampler step k made to action i, in the model's
    (normalised) action space, only the robot's own action dimensions (000 §3.1)."""


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
    """Policy feature name -> (height_px, width_px); all are required."""
    action_dim: int
    chunk_size: int
    steps: int
    """Sampler steps K; `InferResult.updates` has one entry per step."""
    instructions: tuple[str, ...] | None
    """The closed set of instructions, or None where free text (or none at all) is read."""
    device: str
    dtype: str
    max_batch: int
    action_scale: tuple[float, ...] | None = None
    """Action units per normalised unit, [action_dim]; None where the chunk is normalised itself."""
    history_bytes: int = 0
    """What an engine must be sent with a request of a task whose last round it did not answer, for
    a policy that conditions on past observations; 0: stateless."""
    warmup: tuple[tuple[int, float], ...] = ()
    """(batch size, seconds) measured while warming up, ascending from 1: the engine's profile
    until `kairos profile` has measured a better one."""
