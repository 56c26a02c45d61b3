"""Holds numpy's matrix products in this process to one thread."""

import ctypes
from pathlib import Path

SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def use_one_thread() -> bool:
    """Tell the OpenBLAS that numpy brought to use one thread from now on, for all callers.

    The judge's matrices are small: more threads gain nothing on an idle machine, and on a busy one
    they wait for each other (9 ms became 340 ms). False where there is no such library; then
    OPENBLAS_NUM_THREADS or its like must be set before the start.
    """
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return False
    found = False
    for path in {line.split()[-1] for line in maps.splitlines() if "openblas" in line}:
        library = ctypes.CDLL(path)
        setter = next((s for s in SETTERS if hasattr(library, s)), None)
        if setter:
            getattr(library, setter)(1)
            found = True
    return found
