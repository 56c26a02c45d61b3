"""Building a policy without the random values that its file then replaces."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

FILLS = frozenset(
    {
        "add_",
        "clamp_",
        "constant_",
        "erfinv_",
        "fill_",
        "kaiming_normal_",
        "kaiming_uniform_",
        "mul_",
        "normal_",
        "trunc_normal_",
        "uniform_",
        "zero_",
    }
)
"""What initialisation does in place, by torch.nn.init or by a tensor's own methods."""


class Unfilled(TorchFunctionMode):  # type: ignore[misc]  # torch gives it no types
    """Inside this context, parameters are not initialised in this thread: they hold whatever was in
    their memory, and memory that nobody wrote to does not become resident.

    Only for a policy of which `verify_weights` then proves that every parameter is the file's.
    Buffers are computed as ever.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in FILLS:
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, nn.Parameter):
                return target
        return func(*args, **kwargs)
