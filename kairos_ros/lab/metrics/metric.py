"""What tables of a run show, in their order, and how each number is written."""

from collections.abc import Callable
from dataclasses import dataclass

from kairos_ros.recording.runs.summary import Spread, Summary


@dataclass(frozen=True, slots=True)
class Metric:
    """A line of the tables: how to read it from a summary and how to write it."""

    label: str
    value: Callable[[Summary], float | None]
    unit: str = ""
    scale: float = 1.0
    digits: int = 1

    def text(self, summary: Summary) -> str:
        value = self.value(summary)
        return "–" if value is None else f"{value * self.scale:.{self.digits}f} {self.unit}".strip()


def _of(name: str, part: str) -> Callable[[Summary], float | None]:
    def value(summary: Summary) -> float | None:
        spread: Spread | None = getattr(summary, name)
        return None if spread is None else float(getattr(spread, part))

    return value


QUEUEING = Metric("queueing for a robot, average", _of("queueing_s", "mean"), "s", digits=2)
METRICS = (
    Metric("success", lambda s: s.success, "%", 100),
    Metric("end-to-end latency, average", _of("latency_s", "mean"), "s", digits=2),
    Metric("end-to-end latency, P25", _of("latency_s", "p25"), "s", digits=2),
    Metric("end-to-end latency, P95", _of("latency_s", "p95"), "s", digits=2),
    QUEUEING,
    Metric("stalled, of task time", lambda s: s.stall_fraction, "%", 100),
    Metric("stalled after the first action", lambda s: s.mid_task_stall_fraction, "%", 100),
    Metric("mean executed horizon", lambda s: s.mean_horizon, "actions"),
    Metric("inferences per task", lambda s: s.rounds_per_task),
    Metric("chunk latency, median", _of("chunk_latency_s", "p50"), "ms", 1000),
    Metric("chunk latency, P95", _of("chunk_latency_s", "p95"), "ms", 1000),
    Metric("jump where chunks meet", lambda s: s.seam, "steps", digits=2),
    Metric("finished per minute", lambda s: s.tasks_per_minute),
)
