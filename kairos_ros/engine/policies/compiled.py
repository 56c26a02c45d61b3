"""Compiled samplers: what every sampler step calls goes through `torch.compile`, the tap outside.

Compiling takes seconds to minutes for each set of tensor shapes, so it happens while the engine
warms up and never while robots wait: a step whose shapes were not seen by then runs uncompiled.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kairos_ros.core.errors import PolicyError

log = logging.getLogger(__name__)

Step = tuple[Any, str]
"""An object and the name of the method of it that every sampler step calls."""
Points = tuple[tuple[int, float], ...]
"""(batch size, seconds), ascending."""
SHAPES = 64
"""Sets of shapes that one step may be compiled for; torch gives up after 8 unless told."""


class CompiledStep:
    """A step of a sampler that is compiled for the shapes that it meets while `learning`."""

    def __init__(self, step: Step, device: torch.device) -> None:
        owner, name = step
        self.learning = True
        self.uncompiled: set[tuple[Any, ...]] = set()
        """Shapes that came later."""
        self._name = f"{type(owner).__name__}.{name}"
        self._eager: Callable[..., Any] = getattr(owner, name)
        graphs = device.type == "cuda"
        compiled = torch.compile(
            self._eager, dynamic=False, mode="reduce-overhead" if graphs else None
        )
        self._compiled = _kept(compiled) if graphs else compiled
        self._known: set[tuple[Any, ...]] = set()
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if shapes not in self._known:
            if not self.learning:
                return self._uncompiled(shapes, args, kwargs)
            self._known.add(shapes)
        # RowDraws, which seeds what a policy draws, stays outside: a step draws nothing.
        with torch._C.DisableTorchFunction():
            return self._compiled(*args, **kwargs)

    def _uncompiled(self, shapes: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        if shapes not in self.uncompiled:
            self.uncompiled.add(shapes)
            log.warning(
                "%s runs uncompiled for inputs %s, which were not there while the engine warmed up",
                self._name,
                [list(shape) for shape, _ in shapes],
            )
        return self._eager(*args, **kwargs)


def compile_step(step: Step, device: torch.device) -> CompiledStep:
    """Has the step compiled from now on, for tensors on this device."""
    torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)
    torch._inductor.config.compile_threads = 1  # no processes of its own, which could be left over
    return CompiledStep(step, device)


def bucket(size: int, largest: int) -> int:
    """The batch that a batch of `size` is padded to: the next power of two, or `largest`."""
    return min(1 << (size - 1).bit_length(), largest)


def require_same(compiled: torch.Tensor, eager: torch.Tensor, tolerance: float) -> None:
    """Raises PolicyError where two chunks in the model's units differ by more."""
    difference = (compiled - eager).abs().max().item()
    if not difference <= tolerance:
        raise PolicyError(
            f"compiled, its actions differ by {difference:.2g} normalised units from those without "
            f"(at most {tolerance:g} is allowed); leave compile out"
        )


def faster(eager: Points, compiled: Points) -> str:
    """For the log: batch, seconds without and with compilation."""
    before = dict(eager)
    return ", ".join(
        f"batch {size} takes {1e3 * seconds:.1f} ms (uncompiled {1e3 * before[size]:.1f})"
        for size, seconds in compiled
        if size in before
    )


def _kept(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A CUDA graph writes its next result into the same memory: results are copied out of it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, torch.Tensor.clone, compiled(*args, **kwargs)
        )

    return call
