"""How a node's process begins, and how it is told to end."""

import contextlib
import select
import signal
import socket
import sys
from collections.abc import Callable

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kairos_ros.bringup import leave_with_launcher
from kairos_ros.core.errors import KairosError


class Stop:
    """Tells a process to end, once; from any thread and from signal handlers.

    A handler must not set a `threading.Event`: it would wait for a lock that the thread which it
    interrupts may hold for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._ear, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)

    def set(self) -> None:
        self._is_set = True
        with contextlib.suppress(BlockingIOError):  # it has been told often enough
            self._mouth.send(b".")

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns at once when it is set, else after `timeout_s`; whether it is set."""
        select.select([self._ear], [], [], timeout_s if timeout_s is None else max(timeout_s, 0.0))
        return self._is_set


def stop_on_signals() -> Stop:
    """What SIGINT and SIGTERM set from now on."""
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def begin[N: Node](program: str, make: Callable[[], N]) -> tuple[N, SingleThreadedExecutor, Stop]:
    """The node, in an executor of its own, and what SIGINT and SIGTERM set.

    Raises SystemExit 1 after a KairosError of `make`, whose message is printed.
    """
    stop = stop_on_signals()
    leave_with_launcher()
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = make()
    except KairosError as error:
        print(f"{program}: {error}", file=sys.stderr)
        rclpy.shutdown()
        raise SystemExit(1) from None
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    return node, executor, stop
