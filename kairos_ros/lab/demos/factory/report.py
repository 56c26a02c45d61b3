"""What the factory demo prints and writes at its end."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from rich.table import Table

from kairos_ros.lab.demos.factory.ground_truth import MonitorScore
from kairos_ros.lab.demos.factory.history import FleetHistory
from kairos_ros.lab.demos.factory.outcome import Outcome, Result
from kairos_ros.lab.demos.factory.slo import ComponentShare
from kairos_ros.recording.runs.run import TaskRecord
from kairos_ros.robot.supervision.state_table import Effect, Trigger

KEYS = ("done", "not_done", "retries", "humans", "taken_out")
_STYLES = {Result.PASS: "dark_cyan", Result.LATE: "yellow", Result.FAIL: "bold red"}


def event_table(outcomes: Sequence[Outcome]) -> Table:
    """One row per event and robot that reacted."""
    table = Table(title="What happened, and what the robots did", title_justify="left", box=None)
    table.add_column("event", overflow="fold", max_width=44)
    table.add_column("robot", no_wrap=True)
    for name in ("after\nms", "promised\nms", "known to\ndone ms"):
        table.add_column(name, justify="right")
    table.add_column("what it did", overflow="fold")
    table.add_column("runs again\nafter s", justify="right")
    table.add_column("", no_wrap=True)
    for one in outcomes:
        head = f"{one.event.began_s:.0f} s: {one.event.text}"
        result = f"[{_STYLES[one.result]}]{one.result}[/]"
        for i, did in enumerate(one.reactions):
            first = i == 0
            again = "–" if did.recovered_s is None else f"{did.recovered_s:.1f}"
            table.add_row(
                head if first else "",
                did.robot,
                f"{1e3 * did.after_s:.0f}",
                _ms(one.within_s[did.robot]),
                f"{1e3 * did.reacted_s:.0f}",
                did.did,
                again,
                result if first else "",
            )
        if one.why:
            style = _STYLES[one.result]
            event, end = ("", "") if one.reactions else (head, result)
            table.add_row(event, "", "", "", "", f"[{style}]{one.why}[/]", "", end)
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}" if isfinite(seconds) else "–"


def component_table(shares: Sequence[ComponentShare]) -> Table:
    """How often each component kept its objective."""
    table = Table(title="Objectives", title_justify="left", box=None)
    table.add_column("component")
    for name in ("objective ms", "answers", "in time", "P50 ms", "P95 ms", "missed deadlines"):
        table.add_column(name, justify="right")
    for one in shares:
        said = one.answers > 0
        table.add_row(
            one.component,
            " and ".join(f"{ms:g}" for ms in one.slo_ms),
            str(one.answers),
            f"{one.in_time:.1%}" if said else "–",
            f"{1e3 * one.p50_s:.0f}" if said else "–",
            f"{1e3 * one.p95_s:.0f}" if said else "–",
            str(one.missed),
        )
    return table


def monitor_table(scores: Sequence[MonitorScore]) -> Table:
    """What the monitor said, against what was so."""
    title = "The monitor, against what the simulator knew of the same pictures"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("class")
    for name in ("pictures", "right", "wrongly done", "wrongly failed", "failures not seen"):
        table.add_column(name, justify="right")
    for one in scores:
        table.add_row(
            one.task,
            str(one.pictures),
            f"{one.right / one.pictures:.1%}",
            str(one.false_done),
            str(one.false_failed),
            f"{one.missed} of {one.failed}",
        )
    return table


def task_rows(
    groups: Mapping[str, Sequence[str]], tasks: Sequence[TaskRecord], history: FleetHistory
) -> list[dict[str, Any]]:
    """Per task class: what became of its tasks. groups: class -> robots."""
    rows = []
    for name, robots in groups.items():
        ended = [t for t in tasks if t.robot in robots and t.finished]
        called = [
            m for m in history.transitions if m.robot in robots and Effect.CALL_HUMAN in m.effects
        ]
        rows.append(
            {
                "task": name,
                "robots": list(robots),
                "done": sum(t.success for t in ended),
                "not_done": sum(not t.success for t in ended),
                "retries": history.count(robots, Trigger.FAILED),
                "humans": len(called),
                "taken_out": sum(one.took_out for one in history.releases if one.robot in robots),
                "average_s": sum(t.duration_s for t in ended) / len(ended) if ended else None,
            }
        )
    return rows


def task_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The same for people."""
    table = Table(title="Tasks", title_justify="left", box=None)
    table.add_column("class")
    table.add_column("robots")
    for name in ("done", "not done", "retries", "humans called", "taken out", "average s"):
        table.add_column(name, justify="right")
    for row in rows:
        average = row["average_s"]
        table.add_row(
            row["task"],
            ", ".join(row["robots"]),
            *(str(row[key]) for key in KEYS),
            "–" if average is None else f"{average:.1f}",
        )
    return table


def document(
    outcomes: Sequence[Outcome],
    shares: Sequence[ComponentShare],
    rows: Sequence[Mapping[str, Any]],
    scores: Sequence[MonitorScore],
    history: FleetHistory,
) -> dict[str, Any]:
    """All of it for JSON, which knows no NaN."""
    transitions = [asdict(one) | {"effects": sorted(one.effects)} for one in history.transitions]
    return {
        "events": [_event(one) for one in outcomes],
        "components": [_plain(asdict(one)) for one in shares],
        "tasks_by_class": list(rows),
        "monitor": [asdict(one) for one in scores],
        "releases": [asdict(one) for one in history.releases],
        "transitions": transitions,
    }


def _event(outcome: Outcome) -> dict[str, Any]:
    fields: dict[str, Any] = _plain(asdict(outcome))
    return {"deed": fields.pop("event"), **fields}


def _plain(value: Any) -> Any:
    """Without what JSON does not know."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
