"""LeRobot's robot side without torch, which it imports for the sake of a few annotations.

The drivers of robots use nothing of it, and it is most of what they cost: seven times the memory
(docs/so101.md).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

ANNOTATED = ("Tensor", "device", "dtype")
"""What modules mention while they are imported."""


class _Deferred(ModuleType):
    """Stands in for torch while modules are imported; whatever is not annotated loads torch."""

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
    for name in ANNOTATED:
        setattr(stand_in, name, type(name, (), {}))
    try:
        yield
    finally:
        for name in ANNOTATED:
            delattr(stand_in, name)  # from now on they are torch's
        if sys.modules.get("torch") is stand_in:
            del sys.modules["torch"]
