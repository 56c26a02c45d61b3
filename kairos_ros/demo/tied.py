"""Runs a program that ends when the process that started it does, however that one ends.

`python -m kairos_ros.demo.tied PARENT_PID PROGRAM [ARGUMENT...]`
"""

import os
import signal
import sys

from kairos_ros.engine.orphan import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)
    os.execv(sys.argv[2], sys.argv[2:])
