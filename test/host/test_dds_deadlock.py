"""What ends a process in which Fast DDS is stuck. Its timer thread waits for a mutex there; here
one of the same name does, in a process of its own. The deadlock itself takes a host whose threads
are stopped at random (docs/faults.md)."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

TIMER = """
import ctypes, signal, sys, threading, time
from kairos_ros.host import dds_deadlock
dds_deadlock.LOOK_PERIOD_S, dds_deadlock.END_S, dds_deadlock.CHANGE_S = 0.1, {end_s}, {change_s}
libc = ctypes.CDLL(None)
mutex, condition = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
locked = threading.Event()

def timers(wait):
    libc.prctl(15, b"dds.ev.0", 0, 0, 0)  # PR_SET_NAME
    libc.pthread_mutex_lock(mutex)
    locked.set()
    wait()

def begin(wait):
    threading.Thread(target=timers, args=[wait], daemon=True).start()
    locked.wait()
    dds_deadlock.end_when_stuck()

def for_its_own_mutex():
    libc.pthread_mutex_lock(mutex)

def for_a_signal():
    libc.pthread_cond_wait(condition, mutex)

def again_and_again():
    while True:
        time.sleep(0.01)

def hang():
    libc.pthread_mutex_lock(mutex)
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # which keeps Python's lock
"""


def run(
    program: str, end_s: float = 60.0, change_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """The limit that matters is to be a short one; the other is longer than the test."""
    prelude = TIMER.format(end_s=end_s, change_s=change_s)
    line = [sys.executable, "-c", prelude + program]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


def test_a_process_whose_timer_thread_is_stuck_is_asked_to_end_with_the_reason():
    done = run("begin(for_its_own_mutex); time.sleep(50)")
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.startswith("Fast DDS is deadlocked in this process")


def test_one_that_does_not_end_itself_is_ended_with_its_stacks():
    done = run(
        "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
        "begin(for_its_own_mutex)\n"
        "libc.pthread_mutex_lock(mutex)",
        end_s=1.0,
    )
    assert done.returncode == 1
    assert "for_its_own_mutex" in done.stderr


def test_it_is_ended_also_if_it_hangs_after_it_destroyed_its_entities():
    done = run(
        "def leave(*_):\n"
        "    with dds_deadlock.changing_entities(): pass\n"
        "    libc.pthread_mutex_lock(mutex)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "begin(for_its_own_mutex); time.sleep(50)",
        end_s=2.0,  # on a host that is too busy it ends before the handler runs
    )
    assert done.returncode == 1


@pytest.mark.parametrize("wait", ["for_a_signal", "again_and_again"])
def test_a_timer_thread_with_nothing_to_do_is_not_stuck(wait):
    done = run(f"begin({wait}); time.sleep(3); print('lives')")
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


@pytest.mark.parametrize("within", ["", "    with dds_deadlock.changing_entities(): pass\n"])
def test_a_change_of_entities_that_hangs_ends_the_process(within):
    done = run(f"with dds_deadlock.changing_entities():\n{within}    hang()", change_s=1.0)
    assert done.returncode == 1
    assert "in hang" in done.stderr


def test_a_change_of_entities_that_is_over_does_not():
    done = run(
        "with dds_deadlock.changing_entities(): pass\ntime.sleep(7); print('lives')", change_s=5.0
    )
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr


def test_a_process_that_cannot_look_again_after_it_found_a_wait_is_ended():
    done = run(
        "looks = []\n"
        "def waits():\n"
        "    looks.append(True)\n"
        "    return {(1, 'one')} if len(looks) == 1 else hang()\n"
        "dds_deadlock.mutex_waits = waits\n"
        "dds_deadlock.end_when_stuck(); time.sleep(50)",
        change_s=1.0,
    )
    assert done.returncode == 1
    assert "in hang" in done.stderr


def test_a_wait_that_is_over_at_the_next_look_ends_nothing():
    done = run(
        "waits = iter([{(1, 'one')}])\n"
        "dds_deadlock.mutex_waits = lambda: next(waits, set())\n"
        "dds_deadlock.end_when_stuck(); time.sleep(7); print('lives')",
        change_s=5.0,
    )
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr
