"""A process must not outlive the one that started it, however that one ends."""

import ctypes
import os
import signal

from kairos_ros.core.errors import KairosError

PR_SET_PDEATHSIG = 1
LAUNCHER_PID = "KAIROS_LAUNCHER_PID"
"""Environment variable with the process id of who started a node, if that one asks for it."""


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process when the thread that started it ends (Linux).

    For a worker SIGKILL: nobody is left who could use what a politer signal lets it finish.
    Raises KairosError where the parent is gone already or the kernel declines.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise KairosError(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:
        raise KairosError(f"the process that started this one ({parent_pid}) is gone")


def leave_with_launcher() -> None:
    """Called by nodes: if LAUNCHER_PID is set, SIGTERM follows the end of that process."""
    if pid := os.environ.get(LAUNCHER_PID):
        die_with_parent(int(pid), signal.SIGTERM)
