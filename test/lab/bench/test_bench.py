"""`python -m bench`: what holds for every benchmark."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("engine", "unknown benchmark 'engine' (did you mean engine_idle?); known are overhead"),
        ("load --repeats 0", "--repeats: '0' is no whole number of at least 1"),
        ("engine_idle --blocks 0", "--blocks: '0' is no whole number of at least 1"),
        ("rtc --episodes 0", "--episodes: '0' is no whole number of at least 1"),
        ("rtc --horizons static:5 nosuch", "unknown horizon policy 'nosuch'"),
        ("gpu --batches 1,x", "--batches: 'x' is no whole number of at least 1"),
    ],
)
def test_a_wrong_argument_is_said_before_anything_is_measured(line, said):
    words = [sys.executable, "-m", "bench", *line.split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
