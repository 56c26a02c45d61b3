"""A cell's part in a task: it is told of a new one, answers, and says when it is done."""

import time
from collections.abc import Callable
from typing import Any

from rclpy.task import Future
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

ANSWER_WITHIN_NS = 2_000_000_000
SETTLED = 3
"""After a cell's answer, older messages may still be under way; from this one on they are new."""


class DriverCell:
    """`on_done` in the executor, all else in the control thread."""

    def __init__(self, new_task: Any | None, told: Callable[[], dict[str, int]]) -> None:
        """new_task: client of the service that begins a task, where the cell has one. told: how
        many messages came about the task, by topic; besides those of `on_done`."""
        self._new_task, self._told = new_task, told
        self._answer: Future
        self._asked_ns = 0
        self._heard_before: dict[str, int] | None = None
        """What had been told when the answer was there."""
        self._prepared = True
        self._done: bool | None = None
        self.done_count = 0
        """Messages about being done."""

    def on_done(self, message: Bool) -> None:
        self._done = message.data
        self.done_count += 1

    def announce(self) -> None:
        """A new task begins; what was said of the one before does not count any more."""
        self._done = None
        self._prepared = self._new_task is None
        if not self._prepared:
            self._ask()

    def prepared(self) -> bool:
        """Whether the cell has answered, and all that it tells is of the new task."""
        if self._prepared:
            return True
        if not self._answer.done():
            if time.monotonic_ns() - self._asked_ns > ANSWER_WITHIN_NS:
                self._ask()  # a server that had not found us answered nobody
        elif self._heard_before is None:
            self._heard_before = self._told()
        else:
            told = self._told()
            self._prepared = all(told[of] - n >= SETTLED for of, n in self._heard_before.items())
        return self._prepared

    def done(self) -> bool | None:
        return self._done if self._prepared else None

    def _ask(self) -> None:
        assert self._new_task is not None
        self._answer = self._new_task.call_async(Trigger.Request())
        self._asked_ns, self._heard_before = time.monotonic_ns(), None
