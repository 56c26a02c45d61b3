"""What ends a process in which Fast DDS is stuck. Its timer thread waits for a mutex there; here
one of the same name does, in a process of its own. The deadlock itself takes a host whose threads
are stopped at random (docs/faults.md)."""

import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

TIMER = """
import ctypes, signal, sys, threading, time
from kairos_ros.host import dds_deadlock
dds_deadlock.LOOK_PERIOD_S, dds_deadlock.END_S, dds_deadlock.LEAVE_S = 0.1, 1.0, 1.0
libc = ctypes.CDLL(None)
mutex, condition = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)

def timers(wait):
    libc.prctl(15, b"dds.ev.0", 0, 0, 0)  # PR_SET_NAME
    libc.pthread_mutex_lock(mutex)
    wait()

def begin(wait):
    threading.Thread(target=timers, args=[wait], daemon=True).start()
    dds_deadlock.end_when_stuck()

def for_its_own_mutex():
    libc.pthread_mutex_lock(mutex)

def for_a_signal():
    libc.pthread_cond_wait(condition, mutex)

def again_and_again():
    while True:
        time.sleep(0.01)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", TIMER + program]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def test_a_process_whose_timer_thread_is_stuck_is_asked_to_end_with_the_reason():
    done = run("begin(for_its_own_mutex); time.sleep(50)")
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.startswith("Fast DDS is deadlocked in this process")


def test_one_that_does_not_end_itself_is_ended_with_its_stacks():
    done = run(
        "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
        "begin(for_its_own_mutex)\n"
        "libc.pthread_mutex_lock(mutex)"
    )
    assert done.returncode == 1
    assert "for_its_own_mutex" in done.stderr


def test_it_is_ended_also_if_it_hangs_after_it_destroyed_its_entities():
    done = run(
        "def leave(*_):\n"
        "    with dds_deadlock.leaving_dds(): pass\n"
        "    libc.pthread_mutex_lock(mutex)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "begin(for_its_own_mutex); time.sleep(50)"
    )
    assert done.returncode == 1
    assert "in leave" in done.stderr


@pytest.mark.parametrize("wait", ["for_a_signal", "again_and_again"])
def test_a_timer_thread_with_nothing_to_do_is_not_stuck(wait):
    done = run(f"begin({wait}); time.sleep(3); print('lives')")
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


def test_leaving_dds_takes_so_long_and_no_longer():
    hang = "ctypes.PyDLL(None).pthread_mutex_lock(mutex)\n"  # which keeps Python's lock
    began = time.monotonic()
    done = run(f"libc.pthread_mutex_lock(mutex)\nwith dds_deadlock.leaving_dds():\n    {hang}")
    assert done.returncode == 1
    assert "Timeout (0:00:01)" in done.stderr
    assert time.monotonic() - began < 30
    done = run("with dds_deadlock.leaving_dds(): pass\ntime.sleep(2); print('left')")
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
