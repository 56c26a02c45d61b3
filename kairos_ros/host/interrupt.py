"""Ctrl-C: the first one asks for a clean end, the second one ends everything at once."""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """While entered, SIGINT, SIGTERM and SIGHUP set `requested` instead of raising."""

    def __init__(self, at_once: Callable[[], None]) -> None:
        """`at_once` runs on the second signal, right before the process exits with code 130."""
        self.requested = False
        self._at_once = at_once
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        self._previous = {sig: signal.signal(sig, self._handle) for sig in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sig, handler in self._previous.items():
            signal.signal(sig, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            self._at_once()
            os._exit(130)
        self.requested = True


def sigterm_as_ctrl_c() -> None:
    """From now on SIGTERM raises KeyboardInterrupt, too. Signals are the main thread's affair: in
    another one this does nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def ctrl_c_kept() -> Iterator[None]:
    """A KeyboardInterrupt that gets lost meanwhile is raised again.

    Python drops what is raised in a `__del__` or a callback of a weak reference; and where it is
    raised while an extension module loads, that import fails with an ImportError of its own.
    """
    told = sys.unraisablehook

    def again(dropped: "sys.UnraisableHookArgs") -> None:
        if dropped.exc_type is not KeyboardInterrupt:
            told(dropped)
            return
        soon = threading.Timer(0.01, _thread.interrupt_main)  # at once, it would be dropped, too
        soon.daemon = True
        soon.start()

    sys.unraisablehook = again
    try:
        yield
    except Exception as error:
        if _caused_by_ctrl_c(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        sys.unraisablehook = told


def _caused_by_ctrl_c(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None
