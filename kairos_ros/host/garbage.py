"""Imports that the garbage collector leaves alone."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_stay() -> Iterator[None]:
    """For the imports of a program, which stay for its life: the garbage collector does not run
    meanwhile, and does not look at what they left later. With torch and LeRobot that takes a
    second off the start; to look at the modules of a robot node stops its loop for 10 ms."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
