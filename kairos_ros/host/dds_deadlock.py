"""Ends this process if Fast DDS is stuck in it.

Fast DDS 3.2.2 can deadlock when another process destroys a publisher. The thread that hears of it
holds the mutex of the participant discovery and waits for the participant's timer thread
(`PDP::removeWriterProxyData`, `WriterProxy::stop`, `ResourceEvent::unregister_timer`); the timer
thread waits for that mutex (`PDP::set_next_announcement_interval`). From then on the process hears
nobody new, acknowledges nothing, and hangs in its next change of an entity. Whoever supervises it
knows what to do about a process that has ended.

rclpy keeps Python's lock while it changes an entity, so that no thread of Python can find such a
hang. What ends the process then is a native timer.
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
CHANGE_S = 30.0
"""A change of entities takes far less on a busy host, and so does the time between two looks."""
_STDERR = 2
"""Not sys.stderr, which a test may have replaced by one without a descriptor."""
_THREADS = Path("/proc/self/task")
_TIMERS = "dds.ev."
"""Fast DDS names the timer thread of a participant so, with the participant's number."""
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), "")
"""Number of the system call in which a thread waits for a mutex."""
_FUTEX_WAIT, _COMMAND = 0, 0x7F


class EndOfProcess:
    """Ends this process, with exit code 1 and all stacks on stderr, when the first of its limits is
    over. There is one timer of this kind in a process."""

    def __init__(self) -> None:
        self._limits_s: dict[object, float] = {}
        """On the monotonic clock, by whose they are."""
        self._lock = threading.RLock()  # a handler of a signal may come in between

    def within(self, seconds: float, whose: object) -> None:
        with self._lock:
            self._limits_s[whose] = time.monotonic() + seconds
            self._set()

    def no_more(self, whose: object) -> None:
        with self._lock:
            if self._limits_s.pop(whose, None) is not None:
                self._set()

    def _set(self) -> None:
        if not self._limits_s:
            faulthandler.cancel_dump_traceback_later()
            return
        left_s = max(0.001, min(self._limits_s.values()) - time.monotonic())
        faulthandler.dump_traceback_later(left_s, exit=True, file=_STDERR)


_end = EndOfProcess()


class TimerWatch:
    """Looks for timer threads that wait for one mutex all the time."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], int] = {}
        """How often each wait (thread, how often it has slept) has been found in a row."""

    def look(self) -> int:
        """Once; to be called every LOOK_PERIOD_S. How often in a row the same wait was found."""
        self._seen = {wait: self._seen.get(wait, 0) + 1 for wait in mutex_waits()}
        return max(self._seen.values(), default=0)


@cache
def end_when_stuck() -> None:
    """From now on a thread of this process watches. Without effect on other middlewares."""
    threading.Thread(target=_watch, name="dds timers", daemon=True).start()


def _watch() -> None:
    watch = TimerWatch()
    while (looks := watch.look()) < STUCK_LOOKS:
        if looks == 0:
            _end.no_more(watch)
        elif looks == 1:
            _end.within(CHANGE_S, watch)  # another thread may stop this one from looking again
        time.sleep(LOOK_PERIOD_S)
    _end.within(END_S, watch)
    # not by a logger of ROS, which publishes
    text = "Fast DDS is deadlocked in this process, which ends: start it again (docs/faults.md)"
    print(text, file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def changing_entities() -> Iterator[None]:
    """Ends the process with exit code 1 and all stacks if what is done meanwhile, which is to
    create or to destroy entities of DDS, takes longer than CHANGE_S."""
    change = object()
    _end.within(CHANGE_S, change)
    try:
        yield
    finally:
        _end.no_more(change)


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
