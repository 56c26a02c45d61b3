"""How a node's process begins, and how it is told to end."""

import contextlib
import logging
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.host.dds_deadlock import end_when_stuck
from kairos_ros.host.orphan import leave_with_launcher
from kairos_ros.host.shared_memory import keep_ports_open
from kairos_ros.nodes.managed import ManagedNode
from kairos_ros.nodes.timers import warn_without_clock

HEARD_S = 4.0
"""For those who read /rosout to find a node that has just begun and ends at once.

On a busy machine one in four needs 1 s to 3 s: DDS repeats a lost announcement that late.
"""


class RosLog(logging.Handler):
    """Hands what the package logs without ROS to a node's logger, and so to /rosout."""

    def __init__(self, logger: RcutilsLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        # rclpy allows one severity per line of code
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        else:
            self._logger.info(text)


def log_by(node: Node) -> None:
    """From now on this process's modules log by `node`, at INFO and above."""
    log = logging.getLogger("kairos_ros")
    log.handlers = [RosLog(node.get_logger())]
    log.setLevel(logging.INFO)
    log.propagate = False


def give_up(node: Node, error: KairosError) -> NoReturn:
    """Says by a node that it cannot begin, and why. Raises SystemExit 1."""
    node.get_logger().error(str(error))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    time.sleep(HEARD_S)
    rclpy.shutdown()
    raise SystemExit(1)


class Stop:
    """Tells a process to end, once; from any thread and from signal handlers.

    A handler must not set a `threading.Event`: it would wait for a lock that the thread which it
    interrupts may hold for ever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    def set(self) -> None:
        self._is_set = True
        with contextlib.suppress(BlockingIOError):  # it has been told often enough
            self._writer.send(b".")

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns at once when it is set, else after `timeout_s`; whether it is set."""
        select.select(
            [self._reader], [], [], timeout_s if timeout_s is None else max(timeout_s, 0.0)
        )
        return self._is_set


def stop_on_signals() -> Stop:
    """What SIGINT and SIGTERM set from now on."""
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def join_ros(
    args: list[str] | None = None,
    context: rclpy.Context | None = None,
    domain: int | None = None,
) -> None:
    """`rclpy.init`, which leaves signals alone. From now on ports in shared memory are kept open,
    and the process ends if DDS is stuck.

    args: those of the program; None: of this process. domain: ROS domain; None: that of the
    environment. Raises ConfigError for ROS arguments, a
    parameter file or a ROS_DOMAIN_ID that rcl cannot read.
    """
    try:
        rclpy.init(
            args=args,
            context=context,
            domain_id=domain,
            signal_handler_options=SignalHandlerOptions.NO,
        )
    except RuntimeError as error:  # RCLError, which has no public name
        text = str(error).removeprefix("failed to initialize rcl: ")
        raise ConfigError(f"ROS cannot start: {text.partition(', at /')[0]}") from None
    keep_ports_open()
    end_when_stuck()


def begin[N: Node](program: str, make: Callable[[], N]) -> tuple[N, SingleThreadedExecutor, Stop]:
    """The node, in an executor of its own, and what SIGINT and SIGTERM set. One with a lifecycle
    is active then, unless somebody else is to activate it.

    Raises SystemExit 1 after a KairosError of `make`, whose message is printed; and a bug as it is.
    """
    stop = stop_on_signals()
    leave_with_launcher()
    node = None
    try:
        join_ros()
        node = make()
        if isinstance(node, ManagedNode):
            node.interrupted = stop.is_set
            node.start()
    except KairosError as error:
        print(f"{program}: {error}", file=sys.stderr)
        _leave_ros(node)
        raise SystemExit(0 if stop.is_set() else 1) from None
    except Exception:
        _leave_ros(node)
        raise
    log_by(node)
    warn_without_clock(node)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    return node, executor, stop


def _leave_ros(node: Node | None) -> None:
    """Left to the end of the interpreter, a node could wait there for ever."""
    if isinstance(node, ManagedNode):
        with contextlib.suppress(Exception):  # the bug that is on its way already
            node.close()
    rclpy.try_shutdown()
