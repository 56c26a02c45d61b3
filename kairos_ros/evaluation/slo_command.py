"""`kairos slo`: who met the objectives, and the actions that count because of it (001 §4.1)."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from kairos_ros.evaluation.obligations import Judgement, describe, judge
from kairos_ros.evaluation.run_source import read_runs
from kairos_ros.evaluation.slo import PERCENTILE, parse_slo

_HEADS = (
    "invo-\ncations",
    "miss-\ning",
    "in time",
    "held",
    "P50\nms",
    "P95\nms",
    "P99\nms",
    "actions\nper s",
    "qualified\nper s",
)


def slo_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, bags, or folders with some below.", metavar="RUN…"),
    ],
    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="Component and latency, such as system1=500ms; with a rate for one that judges by "
            "itself, such as safety=200ms@5hz. Can be given several times. Without any: what the "
            "robots of a bag worked under, else system1=500ms.",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        Literal["table", "json"], typer.Option("--format", help="For people, or for programs.")
    ] = "table",
) -> None:
    """Who met the latency objectives, and how many actions per second count because of it.

    A bag tells of safety, monitor and planner, too: the share of judgements in time, and how many
    were never made. An action counts if the chunk that it belongs to came in time, and every
    component that its robot works under had a valid answer at that moment.
    """
    wanted = [parse_slo(text) for text in slo or ()]
    judged = [(named.name, judge(named.run, wanted)) for named in read_runs(runs)]
    if format_ == "json":
        typer.echo(json.dumps([row for name, one in judged for row in _documents(name, one)]))
    else:
        Console().print(_table(judged))


def _documents(name: str, judged: Judgement) -> list[dict[str, Any]]:
    """One per SLO. JSON has no NaN: what has no value is null."""
    rows = []
    for slo, attained in judged.attained:
        values: dict[str, Any] = {"run": name, **asdict(attained), **asdict(judged.rate)}
        values |= {"period_s": slo.period_s, "robots": list(slo.robots)}
        values |= {"share": attained.share, "held": attained.held}
        values["qualified_share"] = judged.rate.share
        rows.append(
            {
                key: None if isinstance(value, float) and not isfinite(value) else value
                for key, value in values.items()
            }
        )
    return rows


def _table(judged: Sequence[tuple[str, Judgement]]) -> Table:
    table = Table(
        title=f"held where {PERCENTILE:.0f} % of the invocations are in time",
        title_justify="left",
        box=None,
    )
    table.add_column("run", overflow="fold")
    table.add_column("objective", overflow="fold")
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for name, one in judged:
        for i, (slo, attained) in enumerate(one.attained):
            rates = (one.rate.actions_per_s, one.rate.qualified_per_s) if i == 0 else None
            table.add_row(
                name if i == 0 else "",
                describe(slo),
                str(attained.invocations),
                str(attained.missing),
                _number(100 * attained.share, 2) + " %",
                "yes" if attained.held else "no",
                *(_number(1000 * s, 0) for s in (attained.p50_s, attained.p95_s, attained.p99_s)),
                *((_number(rate, 1) for rate in rates) if rates else ("", "")),
            )
    return table


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if isfinite(value) else "–"
