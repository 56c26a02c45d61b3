"""Real-time chunking: a new chunk is guided to begin with the actions that its robot will execute.

While a chunk is made, the robot executes what is left of the one before: those actions are
committed. Each sampler step is corrected so that the chunk's first rows come out as they are, and
the rest follows from them (Black et al., "Real-Time Execution of Action Chunking Flow Policies",
2025). Equal to LeRobot's `RTCProcessor`, whose Jacobian is the identity, but for each row alone:
rows differ in how many actions are committed, and one without any is computed as without guidance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

MAX_GUIDANCE = 10.0
"""Greatest weight of a correction; LeRobot's default."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What the robots of a batch will execute, in the model's action space."""

    actions: Tensor
    """float32 [B, N, D]; zeros where nothing is committed."""
    weights: Tensor
    """float32 [B, N, D]: 1 where an action is committed, else 0."""


class GuidedSampler(Protocol):
    """A `Sampler` of a family that can be guided."""

    def sample(
        self, batch: dict[str, Any], seeds: Sequence[int], committed: Committed | None = None
    ) -> tuple[Tensor, Tensor]: ...


def guided_velocity(x_t: Tensor, v_t: Tensor, time: float, committed: Committed) -> Tensor:
    """The velocity at `x_t` [B, N, M] and `time` (1 is noise, 0 the chunk), corrected.

    M >= D: dimensions that only pad a model's actions are not corrected.
    """
    done = 1.0 - time
    weight = MAX_GUIDANCE
    if done > 0.0:
        weight = min(time / done * (time**2 + done**2) / time**2, MAX_GUIDANCE)
    dims = committed.actions.shape[-1]
    expected = x_t[..., :dims] - time * v_t[..., :dims]  # the chunk, if the velocity stayed
    error = (committed.actions - expected) * committed.weights
    guided = v_t.clone()
    guided[..., :dims] -= weight * error
    return guided


class Steps:
    """Stands in for LeRobot's RTCProcessor: keeps the velocity of every Euler step, and guides."""

    def __init__(self) -> None:
        self._velocities: list[Tensor] = []
        self._committed: Committed | None = None
        self.asked = False
        """Whether the sampler asked for guided velocities since `begin`."""

    def begin(self, committed: Committed | None) -> None:
        """Before a chunk is sampled."""
        self._velocities.clear()
        self._committed, self.asked = committed, False

    def take(self) -> list[Tensor]:
        """The velocities [B, N, M] of the steps since `begin`, in order."""
        velocities, self._velocities = self._velocities, []
        self._committed = None
        return velocities

    def is_debug_enabled(self) -> bool:
        return True

    def track(self, *, v_t: Tensor, **_: Any) -> None:
        self._velocities.append(v_t)

    def denoise_step(
        self,
        *,
        x_t: Tensor,
        time: float | Tensor,
        original_denoise_step_partial: Callable[[Tensor], Tensor],
        **_: Any,
    ) -> Tensor:
        self.asked = True
        v_t = original_denoise_step_partial(x_t)
        if self._committed is None:
            return v_t
        return guided_velocity(x_t, v_t, float(time), self._committed)


def committed_of(
    rows: list[Tensor], shape: tuple[int, int], offset: Tensor, gain: Tensor
) -> Committed | None:
    """From actions in robot units, float32 [L_b, D] each; None where no row has any.

    shape: N, D of the chunk; what is committed beyond it is left out. offset, gain: [D], robot
    units = offset + gain * model's; dimensions without gain are not guided.
    """
    if not any(len(row) for row in rows):
        return None
    actions = torch.zeros((len(rows), *shape), device=gain.device)
    weights = torch.zeros_like(actions)
    usable = gain != 0
    for row, given in enumerate(rows):
        count = min(len(given), shape[0])
        if not count:  # of no width either
            continue
        model = (given[:count].to(gain.device) - offset) / torch.where(usable, gain, 1.0)
        actions[row, :count] = torch.where(usable, model, 0.0)
        weights[row, :count] = usable.float()
    return Committed(actions, weights)
