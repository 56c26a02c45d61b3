"""`python -m bench`: what holds for every benchmark."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_ctrl_c_ends_a_benchmark_without_a_traceback():
    bench = subprocess.Popen(
        [sys.executable, "-m", "bench", "fuzz", "--seconds", "60"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        text=True,
    )
    assert bench.stdout is not None
    assert bench.stdout.readline()
    bench.send_signal(signal.SIGINT)
    _, said = bench.communicate(timeout=30)
    assert (bench.returncode, said) == (130, "")
