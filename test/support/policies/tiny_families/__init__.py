"""One module per family: how a tiny policy of it is made. `TINY` of each names its kinds."""

from importlib import import_module
from pkgutil import iter_modules

from tiny_families.base import Tiny

TINY: dict[str, Tiny] = {}
"""By kind, as tests name it."""

for _module in sorted(found.name for found in iter_modules(__path__)):
    TINY |= getattr(import_module(f"{__name__}.{_module}"), "TINY", {})
