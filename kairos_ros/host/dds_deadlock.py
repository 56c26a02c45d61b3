"""Ends this process if Fast DDS is stuck in it.

Fast DDS 3.2.2 can deadlock when another process destroys a publisher. The thread that hears of it
holds the mutex of the participant discovery and waits for the participant's timer thread
(`PDP::removeWriterProxyData`, `WriterProxy::stop`, `ResourceEvent::unregister_timer`); the timer
thread waits for that mutex (`PDP::set_next_announcement_interval`). From then on the process hears
nobody new, acknowledges nothing, and hangs in its next change of an entity. Whoever supervises it
knows what to do about a process that has ended.
"""

import faulthandler
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

LOOK_PERIOD_S = 2.0
STUCK_LOOKS = 5
"""In a row, after which the timer thread is taken for stuck."""
END_S = 10.0
"""For a clean end, in which an arm is released; then the process ends wherever it is."""
LEAVE_S = 30.0
"""Leaving DDS takes far less on a busy host."""
_STDERR = 2
"""Not sys.stderr, which a test may have replaced by one without a descriptor."""
_THREADS = Path("/proc/self/task")
_TIMERS = "dds.ev."
"""Fast DDS names the timer thread of a participant so, with the participant's number."""
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), "")
"""Number of the system call in which a thread waits for a mutex."""
_FUTEX_WAIT, _COMMAND = 0, 0x7F
_stuck = threading.Event()
"""This process ends: its timer is set, and stays set."""


class TimerWatch:
    """Looks for timer threads that wait for one mutex all the time."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], int] = {}
        """How often each wait (thread, how often it has slept) has been found in a row."""

    def look(self) -> bool:
        """Once; to be called every LOOK_PERIOD_S. Whether a timer thread is stuck."""
        self._seen = {wait: self._seen.get(wait, 0) + 1 for wait in mutex_waits()}
        return any(looks >= STUCK_LOOKS for looks in self._seen.values())


@cache
def end_when_stuck() -> None:
    """From now on a thread of this process watches. Without effect on other middlewares."""
    threading.Thread(target=_watch, name="dds timers", daemon=True).start()


def _watch() -> None:
    watch = TimerWatch()
    while not watch.look():
        time.sleep(LOOK_PERIOD_S)
    _stuck.set()
    _end_in(END_S)
    # not by a logger of ROS, which publishes
    text = "Fast DDS is deadlocked in this process, which ends: start it again (docs/faults.md)"
    print(text, file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def leaving_dds() -> Iterator[None]:
    """Ends the process with exit code 1 and all stacks if what is done meanwhile, which is to
    destroy entities, takes longer than LEAVE_S. A deadlock there stops all of Python."""
    if not _stuck.is_set():
        _end_in(LEAVE_S)
    try:
        yield
    finally:
        if not _stuck.is_set():
            faulthandler.cancel_dump_traceback_later()


def _end_in(seconds: float) -> None:
    """With all stacks on stderr. The timer is native: it needs no lock that DDS or Python holds."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)


def mutex_waits() -> set[tuple[int, str]]:
    """Timer threads that wait for a mutex, without a timeout, and how often they have slept."""
    waits = set()
    for thread in _THREADS.iterdir():
        try:
            if (thread / "comm").read_text().startswith(_TIMERS) and _waits(thread):
                waits.add((int(thread.name), _slept(thread)))
        except (OSError, ValueError):
            continue  # it has just ended
    return waits


def _waits(thread: Path) -> bool:
    call, *arguments = (thread / "syscall").read_text().split()
    if call != _FUTEX:
        return False
    operation, timeout = int(arguments[1], 16), int(arguments[3], 16)
    return operation & _COMMAND == _FUTEX_WAIT and not timeout


def _slept(thread: Path) -> str:
    lines = (thread / "status").read_text().splitlines()
    return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))
