"""Calls from other threads into the thread of a node's executor."""

from collections.abc import Callable

from rclpy.node import Node

from kairos_ros.nodes.timers import every

LOOK_EVERY_S = 0.2


class ExecutorCall:
    """Has a function called by the node's executor, soon after a thread has asked for it; once
    where several have asked meanwhile.

    A guard condition alone does not do that: rmw_fastrtps 9.3.3 loses a trigger that comes while
    `rmw_wait` checks which ones were triggered (ros2/rmw_fastrtps#895). A timer looks for calls
    that are still due.
    """

    def __init__(self, node: Node, function: Callable[[], None]) -> None:
        self._node, self._function = node, function
        self._asked = False
        self._guard = node.create_guard_condition(self._call)
        self._timer = every(node, LOOK_EVERY_S, self._look)

    def ask(self) -> None:
        """From any thread."""
        self._asked = True
        self._guard.trigger()

    def close(self) -> None:
        """In the node's executor. Nothing is called any more."""
        self._node.destroy_guard_condition(self._guard)
        self._node.destroy_timer(self._timer)

    def _look(self) -> None:
        if self._asked:
            self._call()

    def _call(self) -> None:
        self._asked = False  # before the call: who asks in its midst is called for once more
        self._function()
