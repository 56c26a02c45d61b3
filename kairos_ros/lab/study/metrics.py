"""Names of a cell's metrics, and how people read them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StudyMetric:
    """How a number is shown."""

    label: str
    unit: str = ""
    scale: float = 1.0
    """From the stored number to the unit."""

    @property
    def axis(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


METRICS = {
    "latency_mean_s": StudyMetric("average latency of a task", "s"),
    "latency_p25_s": StudyMetric("P25 latency of a task", "s"),
    "latency_p50_s": StudyMetric("median latency of a task", "s"),
    "latency_p95_s": StudyMetric("P95 latency of a task", "s"),
    "stall_fraction": StudyMetric("time without actions", "%", 100),
    "mid_task_stall_fraction": StudyMetric("share of time stalled mid-task", "%", 100),
    "mid_task_stall_s": StudyMetric("mid-task stall of a task", "s"),
    "mean_horizon": StudyMetric("mean executed horizon", "actions"),
    "rounds_per_task": StudyMetric("rounds per task"),
    "chunk_latency_mean_s": StudyMetric("average latency of a chunk", "s"),
    "observation_age_s": StudyMetric("age of the observation behind an action", "s"),
    "observations_per_round": StudyMetric("observations sent per round"),
    "batch_mean": StudyMetric("requests per batch"),
    "cloud_fraction": StudyMetric("rounds served by the cloud", "%", 100),
    "hedged_fraction": StudyMetric("rounds sent to both tiers", "%", 100),
    "success": StudyMetric("success, as recorded", "%", 100),
    "actions": StudyMetric("actions executed"),
    "busy_robots_mean": StudyMetric("robots with a task, on average"),
    "last_arrival_s": StudyMetric("arrival of the last task", "s"),
    "length_s": StudyMetric("length of the run", "s"),
    "tasks": StudyMetric("tasks finished"),
}
