"""LeRobot's robot side without torch, which it imports for the sake of a few annotations.

The drivers of robots use nothing of it, and it is most of what they cost: seven times the memory
(docs/so101.md).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands in for torch while modules are imported; whatever else is asked of it loads torch."""

    Tensor = type("Tensor", (), {})
    device = type("device", (), {})
    dtype = type("dtype", (), {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system asks a module about itself
            raise AttributeError(name)
        if sys.modules.get("torch") is self:
            del sys.modules["torch"]
        import torch

        return getattr(torch, name)


@contextmanager
def torch_deferred() -> Iterator[None]:
    """Modules that are imported in here get torch only when they use it.

    Afterwards `import torch` is the real one again, for everybody. Not for modules that define
    networks.
    """
    if "torch" in sys.modules:
        yield
        return
    stand_in = sys.modules["torch"] = _Deferred("torch")
    try:
        yield
    finally:
        if sys.modules.get("torch") is stand_in:
            del sys.modules["torch"]
