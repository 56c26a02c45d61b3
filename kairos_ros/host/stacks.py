"""What a process that crashes or hangs was doing."""

import faulthandler
import signal
import sys


def tell_stacks() -> None:
    """From now on a crash in native code (DDS, a driver, a simulator) and SIGUSR1 write the Python
    stack of every thread to stderr, and so to the log."""
    if sys.stderr:
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
