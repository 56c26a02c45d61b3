"""Runs a command all of whose processes stand still again and again, as on an overloaded host:

    python test/support/stand_still.py make test
    python test/support/stand_still.py --one-thread make test

It shows which tests assume a machine that never does. With `--one-thread` one thread stands still
while the others go on, as where more of them want to run than there are processors; the more CPU
time a thread takes, the more often it is chosen. Needs root, and cgroups of version 2.
"""

import argparse
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WAIT_FOR_THREADS = 0x40000000
"""__WALL, which os does not name."""
IDLE_TICKS = 0.02
"""For which a thread counts that took no CPU time."""
CHOSEN_ANEW_S = 0.7


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one-thread", action="store_true", help="not all processes: one thread")
    parser.add_argument("--stop-s", nargs=2, type=float, help="least and most")
    parser.add_argument("--gap-s", nargs=2, type=float, help="least and most")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("give a command, such as `make test`")
    root = next((root for root in ROOTS if (root / "cgroup.procs").exists()), None)
    if root is None:
        parser.error(f"no cgroups of version 2 in {' or '.join(map(str, ROOTS))}")
    stop_s = options.stop_s or ((0.05, 1.0) if options.one_thread else (0.5, 2.0))
    gap_s = options.gap_s or ((0.02, 0.15) if options.one_thread else (4.0, 11.0))
    group = root / f"stand_still_{os.getpid()}"
    group.mkdir()
    join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    process = subprocess.Popen(["sh", "-c", join, "sh", *options.command])
    threads = BusyThreads(group)
    stops = 0
    try:
        while (code := ended(process, random.uniform(*gap_s))) is None:
            if options.one_thread:
                stops += stop_thread(threads.choose(), random.uniform(*stop_s))
            else:
                stand_still(group, random.uniform(*stop_s))
                stops += 1
    except KeyboardInterrupt:
        code = process.wait()  # it was interrupted, too
    print(f"stood still {stops} times; exit code {code}", file=sys.stderr)
    while left := (group / "cgroup.procs").read_text().split():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.1)
    group.rmdir()
    return code


def ended(process: subprocess.Popen[bytes], within_s: float) -> int | None:
    """Its exit code; None where it still runs."""
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        return None


def stand_still(group: Path, seconds: float) -> None:
    try:
        (group / "cgroup.freeze").write_text("1")
        time.sleep(seconds)
    finally:
        (group / "cgroup.freeze").write_text("0")


class BusyThreads:
    """Of the processes of a cgroup."""

    def __init__(self, group: Path) -> None:
        self._group = group
        self._ticks: dict[int, int] = {}
        self._weights: dict[int, float] = {}
        self._looked_s = 0.0

    def choose(self) -> int:
        """A thread's id; 0 where there is none."""
        if time.monotonic() - self._looked_s > CHOSEN_ANEW_S:
            tids = map(int, (self._group / "cgroup.threads").read_text().split())
            now = {tid: ticks for tid in tids if (ticks := cpu_ticks(tid)) is not None}
            self._weights = {t: n - self._ticks.get(t, 0) + IDLE_TICKS for t, n in now.items()}
            self._ticks, self._looked_s = now, time.monotonic()
        if not self._weights:
            return 0
        (tid,) = random.choices([*self._weights], [*self._weights.values()])
        return tid


def cpu_ticks(tid: int) -> int | None:
    """Of a thread that runs or sleeps; None of one that is stopped, ends or is gone."""
    try:
        text = Path(f"/proc/{tid}/stat").read_text()
    except OSError:
        return None
    state, *fields = text[text.rindex(")") + 2 :].split()
    return int(fields[10]) + int(fields[11]) if state in "RSD" else None


def stop_thread(tid: int, seconds: float) -> bool:
    """Whether it could be stopped."""
    if not tid or ptrace(PTRACE_SEIZE, tid):
        return False
    ptrace(PTRACE_INTERRUPT, tid)
    _, status = os.waitpid(tid, WAIT_FOR_THREADS)
    if not os.WIFSTOPPED(status):
        return False  # it ended, and is reaped
    time.sleep(seconds)
    by_us = status >> 16  # else it was about to get a signal, which it gets now
    if ptrace(PTRACE_DETACH, tid, 0 if by_us else os.WSTOPSIG(status)):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(tid, WAIT_FOR_THREADS)  # it was killed meanwhile, and must be reaped
    return True


def ptrace(request: int, tid: int, data: int = 0) -> int:
    """0, or -1 where it failed."""
    call = ctypes.CDLL(None).ptrace
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(request), ctypes.c_long(tid), None, ctypes.c_void_p(data)))


if __name__ == "__main__":
    sys.exit(main())
