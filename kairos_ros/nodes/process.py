"""How a node's process begins: signals, ROS and the node, or the reason why there is none."""

import signal
import sys
import threading
from collections.abc import Callable

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from kairos_ros.bringup import leave_with_launcher
from kairos_ros.core.errors import KairosError


def begin[N: Node](
    program: str, make: Callable[[], N]
) -> tuple[N, SingleThreadedExecutor, threading.Event]:
    """The node, in an executor of its own, and what SIGINT and SIGTERM set.

    Raises SystemExit 1 after a KairosError of `make`, whose message is printed.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
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
