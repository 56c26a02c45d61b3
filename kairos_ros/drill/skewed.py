"""Runs a Python program whose clocks are off: another host's, as far as the program can tell.

`python -m kairos_ros.drill.skewed WALL_S MONOTONIC_S PROGRAM [ARGUMENT...]` moves what the `time`
module says of either clock before the program is loaded.
"""

import runpy
import sys
import time
from collections.abc import Callable


def shift(wall_s: float, monotonic_s: float) -> None:
    """From now on, in this process. Timers of the kernel and of libraries in C are not affected."""
    for name, by_s in (("time", wall_s), ("monotonic", monotonic_s)):
        setattr(time, name, _later(getattr(time, name), by_s))
        in_ns = f"{name}_ns"
        setattr(time, in_ns, _later(getattr(time, in_ns), round(by_s * 1e9)))


def _later[T: (int, float)](clock: Callable[[], T], by: T) -> Callable[[], T]:
    return lambda: clock() + by


if __name__ == "__main__":
    shift(float(sys.argv[1]), float(sys.argv[2]))
    sys.argv = sys.argv[3:]
    runpy.run_path(sys.argv[0], run_name="__main__")
