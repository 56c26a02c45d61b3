"""Noise per row for policies that draw theirs with `torch.randn`, where no argument reaches."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.sampler import RowDraws


@contextmanager
def drawn_by_row(seeds: Sequence[int], after: nn.Module, before: nn.Module) -> Iterator[None]:
    """Within it, what `torch.randn` draws between the forward passes of `after` and `before` is
    drawn row by row, by `RowDraws`.

    Raises PolicyError where not one tensor was drawn there, with one row per seed.
    """
    draws = RowDraws(seeds)
    with ExitStack() as hooks, ExitStack() as drawing:

        def begin(*_: Any) -> None:
            drawing.enter_context(draws)

        def end(*_: Any) -> None:
            drawing.close()

        hooks.callback(after.register_forward_hook(begin).remove)
        hooks.callback(before.register_forward_pre_hook(end).remove)
        yield
    if draws.normals != 1:
        raise PolicyError(f"it drew noise {draws.normals} times, not once, with torch.randn")
