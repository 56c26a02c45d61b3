"""`kairos slo`: who met the objectives, and the actions that count because of it (Rosa §4.1)."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from kairos_ros.lab.metrics.obligations import Judgement, describe, judge
from kairos_ros.lab.metrics.slo import PERCENTILE, Attainment, parse_slo
from kairos_ros.recording.runs.run_source import read_runs

_HEADS = (
    "invo-\ncations",
    "miss-\ning",
    "in time",
    "held",
    "P50\nms",
    "P95\nms",
    "P99\nms",
)
_RATES = ("actions\nper s", "qualified\nper s")


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
    judged = []
    for named in read_runs(runs):
        judged.append((named.name, judge(named.run, wanted)))
        for line in named.run.left_out:
            typer.echo(f"{named.name}: left out {line}", err=True)
    if format_ == "json":
        typer.echo(json.dumps([row for name, one in judged for row in _documents(name, one)]))
    else:
        for table in _tables(judged):
            Console().print(table)


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


def _tables(judged: Sequence[tuple[str, Judgement]]) -> Iterator[Table]:
    """One for all runs that have one objective, the same; else one for each."""
    objectives = {tuple(slo for slo, _ in one.attained) for _, one in judged}
    if len(objectives) == 1 and all(len(slos) == 1 for slos in objectives):
        [(slo,)] = objectives
        table = _table(f"{describe(slo, ())}; held where {PERCENTILE:.0f} % are", "run", *_RATES)
        for name, one in judged:
            table.add_row(name, *_cells(one.attained[0][1]), *_rates(one))
        yield table
        return
    for name, one in judged:
        table = _table(f"{name}; held where {PERCENTILE:.0f} % are in time", "objective")
        for slo, attained in one.attained:
            table.add_row(describe(slo, one.robots), *_cells(attained))
        actions, qualified = _rates(one)
        share = _number(100 * one.rate.share, 1)
        table.caption = f"{actions} actions per s, {qualified} qualified ({share} %)"
        yield table


def _table(title: str, first: str, *more: str) -> Table:
    table = Table(title=title, box=None, title_justify="left", caption_justify="left")
    table.add_column(first, overflow="fold")
    for head in (*_HEADS, *more):
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _cells(attained: Attainment) -> tuple[str, ...]:
    return (
        str(attained.invocations),
        str(attained.missing),
        _number(100 * attained.share, 2) + " %",
        "yes" if attained.held else "no",
        *(_number(1000 * s, 0) for s in (attained.p50_s, attained.p95_s, attained.p99_s)),
    )


def _rates(judged: Judgement) -> tuple[str, str]:
    return _number(judged.rate.actions_per_s, 1), _number(judged.rate.qualified_per_s, 1)


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if isfinite(value) else "–"
