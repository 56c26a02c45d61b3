"""The tasks that a listener hears of, as traces for an OpenTelemetry receiver."""

import time
from collections import Counter

from kairos_ros.recording.tasks import BagTask
from kairos_ros.telemetry.events import Event
from kairos_ros.tracing.live import LiveTasks
from kairos_ros.tracing.otlp import Trace, TraceSender
from kairos_ros.tracing.spans import task_spans


class Traces:
    """Not thread safe."""

    def __init__(self, sender: TraceSender) -> None:
        self.sender = sender
        self._tasks = LiveTasks()

    @property
    def left_out(self) -> Counter[str]:
        """Rounds and tasks that are in no trace, by reason."""
        return self._tasks.left_out

    def take(self, event: Event) -> None:
        """at_s: on this host's monotonic clock."""
        self._tasks.take(event)

    def tell(self) -> None:
        """Sends the tasks that are over. To be called once a second."""
        self._send(self._tasks.over(time.monotonic()))

    def close(self) -> None:
        """Sends what is known of the others, too."""
        self._send(self._tasks.all())

    def _send(self, tasks: list[BagTask]) -> None:
        epoch_ns = time.time_ns() - time.monotonic_ns()
        for task in tasks:
            if spans := task_spans(task):
                self.sender.send(Trace(task.key, spans, epoch_ns))
