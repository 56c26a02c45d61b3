"""What is printed and written when the demo is over."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

from rich.table import Table

from kairos_ros.lab.metrics.metric import METRICS, QUEUEING, Metric
from kairos_ros.lab.testbed.live import LiveFleet
from kairos_ros.lab.testbed.workload import BACK_TO_BACK
from kairos_ros.recording.runs.run import FleetRun, TaskRecord, shared_tasks
from kairos_ros.recording.runs.summary import summarise

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class RunReport:
    """One configuration: how it was set up and what it came to."""

    configuration: Mapping[str, Any]
    run: FleetRun
    startup: Mapping[str, float | None] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "configuration": dict(self.configuration),
            "startup": dict(self.startup),
            "length_s": self.run.length_s,
            "open_s": self.run.open_s,
            "summary": asdict(summarise(self.run)),
            "server": dict(self.server),
            "tasks": [task_document(task) for task in self.run.tasks],
            "spans": [asdict(span) for span in self.run.spans],
        }


def summary_table(report: RunReport) -> Table:
    """The summary of one run."""
    s = summarise(report.run)
    table = Table(title=describe(report.configuration), title_justify="left", box=None)
    table.add_column("", style="bright_black")
    table.add_column("", justify="right")
    table.add_column("")
    for metric in _metrics(report):
        note = ""
        if metric.label == "success" and s.success_95:
            low, high = s.success_95
            note = f"{s.succeeded} of {s.tasks} (95 %: {100 * low:.0f}–{100 * high:.0f} %)"
        table.add_row(metric.label, metric.text(s), note)
    if s.surprises:
        table.add_row("asked for early by surprise", str(s.surprises))
    table.add_row("refused, dropped, guarded", f"{s.refusals}, {s.dropped}, {s.guarded}")
    if s.unfinished:
        table.add_row("unfinished", str(s.unfinished), "canceled or lost; not counted")
    return table


def scene_table(report: RunReport) -> Table:
    """Success per task, and per policy where tasks ran on several."""
    table = Table(box=None)
    for name in ("task", "succeeded", "average s", "inferences"):
        table.add_column(name, justify="left" if name == "task" else "right")
    summary = summarise(report.run)
    for name, result in (summary.scenes | summary.policies).items():
        table.add_row(
            name.removesuffix("-v3"),
            f"{result.succeeded}/{result.tasks}",
            f"{result.latency_mean_s:.2f}",
            f"{result.rounds_mean:.1f}",
        )
    return table


def comparison(ours: RunReport, baseline: RunReport) -> list[dict[str, Any]]:
    """Every metric of both, on the tasks that both finished, and the ratio ours / baseline.

    Throughput alone counts all tasks of each.
    """
    shared = [summarise(run) for run in shared_tasks(ours.run, baseline.run)]
    whole = [summarise(ours.run), summarise(baseline.run)]
    rows = []
    for metric in _metrics(ours):
        pair = whole if metric.label == "finished per minute" else shared
        mine, theirs = (metric.value(s) for s in pair)
        rows.append(
            {
                "metric": metric.label,
                "ours": mine,
                "baseline": theirs,
                "ratio": mine / theirs if mine is not None and theirs else None,
                "text": [metric.text(s) for s in pair],
            }
        )
    return rows


def comparison_table(ours: RunReport, baseline: RunReport) -> Table:
    tasks = len(shared_tasks(ours.run, baseline.run)[0].tasks)
    table = Table(
        title=f"the {tasks} tasks that both finished, with the same scenes and seeds",
        title_justify="left",
        box=None,
    )
    table.add_column("", no_wrap=True)
    heads = [policies(report).replace(", ", "\n", 1) for report in (ours, baseline)]
    table.add_column(f"ours\n{heads[0]}", justify="right", overflow="fold", style="dark_cyan")
    table.add_column(f"baseline\n{heads[1]}", justify="right", overflow="fold")
    table.add_column("ratio", justify="right")
    for row in comparison(ours, baseline):
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(row["metric"], *row["text"], ratio)
    return table


def comparison_finding(ours: RunReport, baseline: RunReport) -> str:
    """What the comparison showed, in one line, whichever way it went."""
    ratios = {row["metric"]: row["ratio"] for row in comparison(ours, baseline)}
    latency = ratios["end-to-end latency, average"]
    inferences = ratios["inferences per task"]
    if latency is None or inferences is None:
        return "too few tasks to compare"
    tasks = len(shared_tasks(ours.run, baseline.run)[0].tasks)
    return (
        f"The same {tasks} tasks: ours takes {latency:.2f} times as long "
        f"with {inferences:.2f} times the inferences"
    )


def part_latencies(ours: RunReport, baseline: RunReport) -> tuple[list[float], list[float]]:
    """Average latency (s) of the shared tasks in each part of either: what differs between the
    parts of one configuration is the machine, not the configuration."""
    mine, theirs = (
        [
            sum(latencies) / len(latencies)
            for start, end in run.open_s
            if (latencies := [t.duration_s for t in run.tasks if start <= t.given_s <= end])
        ]
        for run in shared_tasks(ours.run, baseline.run)
    )
    return mine, theirs


def describe(configuration: Mapping[str, Any]) -> str:
    """A configuration in one line."""
    return (
        f"{configuration['scheduling']} · {configuration['horizon']} · "
        f"{configuration['robots']} robots · {configuration['arrivals']} · "
        f"seed {configuration['seed']}"
    )


def server_document(live: LiveFleet) -> dict[str, Any]:
    """The serving node's own counters at the end."""
    return {"counters": dict(live.counters), "engines": [asdict(e) for e in live.engines]}


def task_document(task: TaskRecord) -> dict[str, Any]:
    """As plain data for JSON, which has no NaN: a round that was given up has latency null, and one
    without a jump at its beginning has seam null."""
    per_round = {"round_latency_s": task.round_latency_s, "round_seam": task.round_seam}
    return asdict(task) | {
        name: [None if isnan(value) else value for value in values]
        for name, values in per_round.items()
    }


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps({"schema": SCHEMA, **document}, indent=1, allow_nan=False) + "\n")


def _metrics(report: RunReport) -> list[Metric]:
    """All but those that mean nothing here: back to back, no task waits for a robot."""
    back_to_back = report.configuration["arrivals"] == BACK_TO_BACK
    return [metric for metric in METRICS if not (back_to_back and metric is QUEUEING)]


def policies(report: RunReport) -> str:
    """Scheduling and horizon policy of a run."""
    return f"{report.configuration['scheduling']}, {report.configuration['horizon']}"
