"""What a drill prints and writes: a table per fault and robot, JSON, Markdown."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from kairos_ros.lab.drill.proof.verdict import RobotVerdict
from kairos_ros.lab.drill.run import FaultResult

SCHEMA = 1
COLUMNS = {
    "robot": 8,
    "": 4,
    "tasks": 6,
    "proven": 6,
    "wrong": 5,
    "hold": 8,
    "silence": 8,
    "wait": 8,
    "edge+cloud": 10,
}
"""Heads and widths of the table of robots."""
LEGEND = (
    "tasks: finished/running during the fault; proven, wrong: executed actions; hold: longest "
    "within a task;\nsilence: longest without a command; wait: longest for a chunk; edge+cloud: "
    "chunks from there"
)


def robot_table(result: FaultResult, *, heads: bool) -> Table:
    """A row for every robot in one fault."""
    table = Table(box=None, show_header=heads, pad_edge=False)
    for head, width in COLUMNS.items():
        justify: Any = "left" if head in ("robot", "") else "right"
        table.add_column(head, justify=justify, width=width, no_wrap=True)
    for verdict in result.robots:
        name, mark, *cells = robot_cells(verdict)
        style = "dark_cyan" if verdict.passed else "bold red"
        table.add_row(name, Text(mark, style=style), *cells)
    return table


def robot_cells(verdict: RobotVerdict) -> list[str]:
    """One robot's row, without the fault."""
    wait = "never" if verdict.wait_s is None else f"{verdict.wait_s:.2f} s"
    return [
        verdict.robot,
        "pass" if verdict.passed else "FAIL",
        f"{verdict.finished}/{verdict.tasks}",
        "–" if verdict.proven is None else str(verdict.proven),
        str(len(verdict.wrong)),
        f"{verdict.hold_s:.2f} s",
        f"{verdict.silence_s:.2f} s",
        wait,
        f"{verdict.chunks.get('edge', 0)}+{verdict.chunks.get('cloud', 0)}",
    ]


def failures(results: Sequence[FaultResult]) -> list[str]:
    """Every expectation that did not come true, one line each."""
    lines = []
    for result in results:
        checks = [("the fleet", check) for check in result.checks]
        checks += [(verdict.robot, check) for verdict in result.robots for check in verdict.checks]
        lines += [f"{result.name}, {who}, {c.name}: {c.found}" for who, c in checks if not c.ok]
        lines += [f"{result.name}: {dead}" for dead in result.dead]
    return lines


def markdown(results: Sequence[FaultResult]) -> str:
    """A table of faults, for documents: the worst robot of each."""
    lines = [
        "| fault | robots | tasks | actions proven, wrong | longest hold | longest without a "
        "command | longest wait for a chunk | the fleet |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        robots = result.robots
        good = sum(robot.passed for robot in robots)
        waits = [robot.wait_s for robot in robots]
        slowest = max((s for s in waits if s is not None), default=0.0)
        wait = "never" if None in waits else f"{slowest:.2f} s"
        fleet = "; ".join(f"{c.name}: {c.found}{'' if c.ok else ' (FAIL)'}" for c in result.checks)
        lines.append(
            f"| {result.title} | {good} of {len(robots)} pass "
            f"| {sum(r.finished for r in robots)}/{sum(r.tasks for r in robots)} "
            f"| {sum(r.proven or 0 for r in robots)}, {sum(len(r.wrong) for r in robots)} "
            f"| {max((r.hold_s for r in robots), default=0.0):.2f} s "
            f"| {max((r.silence_s for r in robots), default=0.0):.2f} s | {wait} | {fleet} |"
        )
    return "\n".join(lines) + "\n"


def document(results: Sequence[FaultResult], configuration: dict[str, Any]) -> dict[str, Any]:
    """Everything, for JSON."""
    return {
        "schema": SCHEMA,
        "configuration": configuration,
        "passed": all(result.passed for result in results),
        "faults": [
            {**asdict(result), "passed": result.passed}
            | {
                "robots": [
                    {**asdict(verdict), "passed": verdict.passed} for verdict in result.robots
                ]
            }
            for result in results
        ],
    }


def write(folder: Path, results: Sequence[FaultResult], configuration: dict[str, Any]) -> None:
    """`drill.json` and `drill.md`."""
    text = json.dumps(document(results, configuration), indent=1, allow_nan=False)
    (folder / "drill.json").write_text(text + "\n")
    (folder / "drill.md").write_text(markdown(results))
