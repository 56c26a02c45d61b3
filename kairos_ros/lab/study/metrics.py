"""Names of a cell's metrics, and how people read them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """How a number is shown."""

    label: str
    unit: str = ""
    scale: float = 1.0
    """From the stored number to the unit."""

    @property
    def axis(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


METRICS = {
    "latency_mean_s": Metric("average latency of a task", "s"),
    "latency_p25_s": Metric("P25 latency of a task", "s"),
    "latency_p50_s": Metric("median latency of a task", "s"),
    "latency_p95_s": Metric("P95 latency of a task", "s"),
    "stall_fraction": Metric("time without actions", "%", 100),
    "mid_task_stall_fraction": Metric("share of time stalled mid-task", "%", 100),
    "mid_task_stall_s": Metric("mid-task stall of a task", "s"),
    "mean_horizon": Metric("mean executed horizon", "actions"),
    "rounds_per_task": Metric("rounds per task"),
    "chunk_latency_mean_s": Metric("average latency of a chunk", "s"),
    "observation_age_s": Metric("age of the observation behind an action", "s"),
    "observations_per_round": Metric("observations sent per round"),
    "batch_mean": Metric("requests per batch"),
    "cloud_fraction": Metric("rounds served by the cloud", "%", 100),
    "hedged_fraction": Metric("rounds sent to both tiers", "%", 100),
    "success": Metric("success, as recorded", "%", 100),
    "actions": Metric("actions executed"),
    "busy_robots_mean": Metric("robots with a task, on average"),
    "last_arrival_s": Metric("arrival of the last task", "s"),
    "length_s": Metric("length of the run", "s"),
    "tasks": Metric("tasks finished"),
}
