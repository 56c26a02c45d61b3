"""Actions as a stream of targets: each goal takes the place of the one before."""

import time
from collections import deque
from typing import Any

from rclpy.action import ActionClient
from rclpy.node import Node

from kairos_ros.host.dds_deadlock import changing_entities
from kairos_ros.nodes.executor_call import ExecutorCall

MOST_UNANSWERED = 3
FORGET_AFTER_S = 1.0
"""An answer that has not come by then was lost."""


class GoalStream:
    """Sends the newest goal, and notes whether any is rejected; what becomes of goals is not asked,
    as joint states tell. `begin`, `send` and `send_late` from any thread, all else happens in the
    node's executor."""

    def __init__(self, node: Node, kind: Any, name: str) -> None:
        self.rejected = False
        """Since `begin`."""
        self._client: ActionClient = ActionClient(node, kind, name)
        self._newest: deque[Any] = deque(maxlen=1)
        self._unanswered: deque[float] = deque()
        self._call = ExecutorCall(node, self._send)

    def begin(self) -> None:
        """Forgets what was rejected, and what was not sent yet."""
        self.rejected = False
        self._newest.clear()

    def send(self, goal: Any) -> None:
        self._newest.append(goal)
        self._call.ask()

    def send_late(self) -> None:
        """Sends the newest goal if the controller was too late for it; there may be no next one."""
        if self._newest:
            self._call.ask()

    def close(self) -> None:
        """In the node's executor."""
        with changing_entities():
            self._client.destroy()
        self._call.close()

    def _send(self) -> None:
        now_s = time.monotonic()
        while self._unanswered and now_s - self._unanswered[0] > FORGET_AFTER_S:
            self._unanswered.popleft()
        if len(self._unanswered) >= MOST_UNANSWERED:
            return  # a controller that is late gets the newest one next time
        try:
            goal = self._newest.pop()
        except IndexError:
            return  # several came before the executor did
        self._unanswered.append(now_s)
        self._client.send_goal_async(goal).add_done_callback(self._on_answer)

    def _on_answer(self, answer: Any) -> None:
        if self._unanswered:
            self._unanswered.popleft()
        self.rejected |= not answer.result().accepted
