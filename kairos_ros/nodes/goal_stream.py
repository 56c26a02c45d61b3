"""Actions as a stream of targets: each goal takes the place of the one before."""

import time
from collections import deque
from typing import Any

from rclpy.action import ActionClient
from rclpy.node import Node

MOST_UNANSWERED = 3
FORGET_AFTER_S = 1.0
"""An answer that has not come by then was lost."""


class GoalStream:
    """Sends the newest goal, and notes whether any is rejected; what becomes of goals is not asked,
    as joint states tell. `send` from any thread, all else happens in the node's executor."""

    def __init__(self, node: Node, kind: Any, name: str) -> None:
        self.rejected = False
        """Since it was last set to False."""
        self._node = node
        self._client = ActionClient(node, kind, name)
        self._newest: Any = None
        self._unanswered: deque[float] = deque()
        self._came = node.create_guard_condition(self._send)

    def send(self, goal: Any) -> None:
        self._newest = goal
        self._came.trigger()

    def close(self) -> None:
        """In the node's executor."""
        self._client.destroy()
        self._node.destroy_guard_condition(self._came)

    def _send(self) -> None:
        goal, now_s = self._newest, time.monotonic()
        while self._unanswered and now_s - self._unanswered[0] > FORGET_AFTER_S:
            self._unanswered.popleft()
        if goal is None or len(self._unanswered) >= MOST_UNANSWERED:
            return  # a controller that is late gets the newest one next time
        self._newest = None
        self._unanswered.append(now_s)
        self._client.send_goal_async(goal).add_done_callback(self._on_answer)

    def _on_answer(self, answer: Any) -> None:
        if self._unanswered:
            self._unanswered.popleft()
        self.rejected |= not answer.result().accepted
