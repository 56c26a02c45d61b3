"""LeRobot's own scripts in this process: `lerobot_scripts.py eval|rollout ARGUMENT...`.

They import what they record data sets and videos with, which is not used here and needs packages
that are not installed everywhere. Where those are missing, empty names stand in for them; all else
is LeRobot's.
"""

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

MISSING = ("datasets", "av")


class _DataSets(ModuleType):
    """`lerobot.datasets` with the parts that need no further package."""

    PARTS = ("lerobot.datasets.pipeline_features",)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        for part in self.PARTS:
            if found := getattr(importlib.import_module(part), name, None):
                return found
        return type(name, (), {})


def script(name: str) -> ModuleType:
    """`eval` or `rollout`."""
    if not all(map(find_spec, MISSING)):
        _stand_in_for_data_sets()
    module = importlib.import_module(f"lerobot.scripts.lerobot_{name}")
    if name == "eval" and not find_spec("av"):
        module.write_video = lambda *_, **__: None
    return module


def _stand_in_for_data_sets() -> None:
    import lerobot
    from lerobot.utils import import_utils

    stand_in = _DataSets("lerobot.datasets")
    stand_in.__path__ = [str(Path(lerobot.__file__).parent / "datasets")]
    sys.modules["lerobot.datasets"] = stand_in
    for part in ("lerobot_dataset", "utils"):
        module = _DataSets(f"lerobot.datasets.{part}")
        sys.modules[module.__name__] = module
    require = import_utils.require_package

    def require_other(package: str, *rest: object, **options: object) -> None:
        if package not in MISSING:
            require(package, *rest, **options)

    import_utils.require_package = require_other


def run(name: str, *arguments: str) -> None:
    """As on the command line."""
    sys.argv = [f"lerobot-{name}", *arguments]
    script(name).main()


if __name__ == "__main__":
    run(*sys.argv[1:])
