"""A Python for workers in whose process pi0 and pi05 are small: `tiny_pi_python.py -m MODULE ...`.

LeRobot has two hard-coded sizes of them; this is what a `WorkerSpec` may name as its interpreter
(through `small_python`).
"""

import runpy
import sys
from pathlib import Path


def small_python(folder: Path) -> str:
    """An executable in the folder that runs this file."""
    script = folder / "small_python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    script.chmod(0o700)
    return str(script)


if __name__ == "__main__":
    from tiny_families.pi import small_pi

    assert sys.argv[1] == "-m"
    del sys.argv[:2]
    with small_pi():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
