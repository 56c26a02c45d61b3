"""Timers of real time, whatever clock a node's stamps come from.

With `use_sim_time` a node's own clock follows `/clock`, and stands still where nobody publishes it.
Heartbeats, deadlines and diagnostics must go on all the same.
"""

from collections.abc import Callable

from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node
from rclpy.timer import Timer

STEADY = Clock(clock_type=ClockType.STEADY_TIME)
LOOK_EVERY_S = 5.0
WARN_EVERY_S = 60.0


def every(node: Node, period_s: float, callback: Callable[[], None]) -> Timer:
    """A timer of the monotonic clock."""
    return node.create_timer(period_s, callback, clock=STEADY)


def period_ns(rate_hz: float) -> int:
    """Of a rate above 0; at most a day."""
    return round(1e9 / max(rate_hz, 1 / 86400))


def set_rate(timer: Timer, rate_hz: float) -> None:
    """So often from now on; 0: never."""
    if rate_hz > 0:
        timer.timer_period_ns = period_ns(rate_hz)
        timer.reset()
    else:
        timer.cancel()


def warn_without_clock(node: Node) -> None:
    """From now on logs a warning while `use_sim_time` is set and nobody publishes `/clock`."""

    def look() -> None:
        if node.get_parameter("use_sim_time").value and not node.get_clock().now().nanoseconds:
            node.get_logger().warning(
                "use_sim_time is true and nobody publishes /clock, so this node's stamps are 0; "
                "start the simulator, `ros2 bag play --clock`, or set use_sim_time to false",
                throttle_duration_sec=WARN_EVERY_S,
            )

    every(node, LOOK_EVERY_S, look)
