"""Runs a program that ends when the process that started it does, however that one ends.

`python -m kairos_ros.lab.testbed.tied_program PARENT_PID WALL_S MONOTONIC_S PROGRAM [ARGUMENT...]`
also moves what the `time` module of a Python program says of either clock, before the program is
loaded: another host's clocks, as far as the program can tell.
"""

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable

from kairos_ros.host.orphan import die_with_parent

TIED_PROGRAM = "kairos_ros.lab.testbed.tied_program"


def shift(wall_s: float, monotonic_s: float) -> None:
    """From now on, in this process. Timers of the kernel and of libraries in C are not affected."""
    for name, by_s in (("time", wall_s), ("monotonic", monotonic_s)):
        setattr(time, name, _later(getattr(time, name), by_s))
        in_ns = f"{name}_ns"
        setattr(time, in_ns, _later(getattr(time, in_ns), round(by_s * 1e9)))


def _later[T: (int, float)](clock: Callable[[], T], by: T) -> Callable[[], T]:
    return lambda: clock() + by


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)
    clocks_s = float(sys.argv[2]), float(sys.argv[3])
    sys.argv = sys.argv[4:]
    if not any(clocks_s):
        os.execv(sys.argv[0], sys.argv)
    shift(*clocks_s)
    runpy.run_path(sys.argv[0], run_name="__main__")
