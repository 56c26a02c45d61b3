"""Samplers with an update tap: a chunk, and what every sampler step changed (Dai et al. §3.1).

A tap only listens: with it the policy computes bit for bit what it computes without. A policy that
answers at once has no steps to tap.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kairos_ros.core.errors import PolicyError
from kairos_ros.transport.messages import InferRequest


def row_generators(seeds: Sequence[int]) -> list[torch.Generator]:
    """One CPU generator per row, so that a GPU engine draws the same noise as a CPU engine. Row b
    depends on seed b only: noise belongs to a robot, not to a batch."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def row_noise(
    generators: Sequence[torch.Generator], shape: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    """Standard normal float32 [B, *shape]; advances the generators."""
    rows = [torch.randn(shape, generator=generator) for generator in generators]
    return torch.stack(rows).to(device)


class RowDraws(TorchFunctionMode):
    """Within it, what LeRobot draws with `torch.randn` or `torch.multinomial` comes from the
    generators of the rows: row b from seed b. Of this thread only, and nothing in LeRobot is
    replaced. For policies that take no noise.

    The first dimension of normal noise is the row; that of the weights is the row, or several draws
    per row, one row after the other. Raises PolicyError for other shapes.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        self._generators = row_generators(seeds)
        self.normals = 0
        """How often `torch.randn` was called."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        draw = {torch.randn: self._normal, torch.multinomial: self._categories}.get(func, func)
        return draw(*args, **(kwargs or {}))

    def _normal(self, *size: Any, generator: None = None, **options: Any) -> Tensor:
        like = torch.empty(*size, **options)
        if len(like) != len(self._generators):
            raise PolicyError(
                f"it draws noise {list(like.shape)} for {len(self._generators)} robots"
            )
        self.normals += 1
        return row_noise(self._generators, tuple(like.shape[1:]), like.device).to(like.dtype)

    def _categories(self, weights: Tensor, num_samples: int) -> Tensor:
        draws, rest = divmod(len(weights), len(self._generators))
        if rest:
            raise PolicyError(f"it draws {len(weights)} times for {len(self._generators)} robots")
        drawn = [
            torch.multinomial(row, num_samples, generator=generator)
            for row, generator in zip(weights.cpu().split(draws), self._generators, strict=True)
        ]
        return torch.cat(drawn).to(weights.device)


def with_steps(config: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """A batch as LeRobot's queues of observations would give it: the state [B, n_obs_steps, D], and
    all cameras as one [B, n_obs_steps, cameras, 3, height, width]."""
    pictures = [batch[key] for key in config.image_features]
    stacked = {"observation.state": batch["observation.state"]}
    if pictures:
        stacked["observation.images"] = torch.stack(pictures, dim=-4)
    if config.n_obs_steps == 1:
        stacked = {key: value.unsqueeze(1) for key, value in stacked.items()}
    return batch | stacked


def in_equal_lengths(
    lengths: Sequence[int], sample: Callable[[list[int]], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Chunks and updates of all rows, where `sample` gives those of some: a pass for each length,
    so that nothing has to be padded and no row depends on the instructions of others."""
    drawn: dict[int, tuple[Tensor, Tensor]] = {}
    for length in set(lengths):
        rows = [row for row, other in enumerate(lengths) if other == length]
        chunk, updates = sample(rows)
        drawn |= zip(rows, zip(chunk, updates.unbind(1), strict=True), strict=True)
    chunks, updates_of = zip(*(drawn[row] for row in range(len(lengths))), strict=True)
    return torch.stack(chunks), torch.stack(updates_of, dim=1)


class Sampler(Protocol):
    """Draws action chunks from a policy."""

    chunk_size: int
    action_dim: int
    observations: int
    """How many observations the policy reads, one control period apart: the newest, and those of
    the periods before. With more than one, every state and picture of a batch has them as its
    second dimension, oldest first."""

    def sample(self, batch: dict[str, Any], seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        """`batch`: preprocessed, one row per robot; `seeds`: one per row.

        Returns the chunk [B, N, D] and updates [K, B, N, D], both in the model's action space:
        the noise of a row plus its K updates is its chunk. K is 0 for a policy without steps.
        A chunk is wider than D where `FamilyCode.padded_dim` says so.
        """
        ...


@runtime_checkable
class KeepingSampler(Protocol):
    """A sampler that keeps a state of every task, one robot at a time."""

    chunk_size: int
    action_dim: int
    observations: int
    """As of a `Sampler`, but so many executed actions apart:"""
    keyframe_stride: int
    """As in `EngineDescription`, not 0."""
    states_bytes: int
    """Most memory that the states may take."""

    def go_on(
        self, batch: dict[str, Any], request: InferRequest, executed: Tensor
    ) -> tuple[Tensor, Tensor, str]:
        """executed: `request.executed`, in the model's units.

        Returns as `Sampler.sample`, with N up to `chunk_size`, and why the state was begun anew in
        the middle of a task; empty where it was not.
        """
        ...


Resize = Callable[[Tensor], Tensor]
"""float32 [1, 3, height, width] in 0..1 -> the same at the policy's own size, padded."""


def as_saved(_config: Any) -> None:
    """Serves with the configuration as it was saved."""


@dataclass(frozen=True, slots=True)
class FamilyCode:
    """What a module of `families/` gives."""

    sampler: Callable[[Any], Sampler | KeepingSampler]
    """Of a loaded policy. Raises PolicyError for one that it cannot tap."""
    configure: Callable[[Any], None] = as_saved
    """Changes the saved configuration before the policy is built, where serving needs it."""
    resize: Callable[[Any], Resize] | None = None
    """Of a configuration: the resizing that the policy itself does, by the function that it uses.
    For families that `served.Family.resizes`; a picture that went through it is left alone."""
    renamed: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """What LeRobot does to saved weights, by name, before it loads them: renames, leaves out and
    transposes them."""
    step: Callable[[Any], tuple[Any, str]] | None = None
    """Of a policy: the object, and the name of the method of it, that every sampler step calls and
    that can be compiled. None: none can."""
    largest_batch: int | None = None
    """1 where the policy takes one robot at a time. None: what memory allows."""
    dtype: str | None = None
    """The only one that it computes in. None: what is asked for."""
    padded_dim: Callable[[Any], int] | None = None
    """Of a configuration: the width of the chunks that the postprocessor takes, where it is that
    which cuts the padding off. None: D."""
