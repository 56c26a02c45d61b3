"""`kairos slo`: who met the objectives, and the actions that count because of it (001 §4.1)."""

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from kairos_ros.core.errors import ConfigError
from kairos_ros.evaluation.run_source import NamedRun, read_runs
from kairos_ros.evaluation.slo import (
    PERCENTILE,
    SYSTEM1,
    Attainment,
    Slo,
    Throughput,
    attainment,
    parse_slo,
    system1_invocations,
    throughput,
)

_HEADS = (
    "invo-\ncations",
    "in time",
    "held",
    "P50\nms",
    "P95\nms",
    "P99\nms",
    "actions\nper s",
    "qualified\nper s",
)


def judge(run: NamedRun, slo: Slo) -> tuple[Attainment, Throughput]:
    """How a run did against an SLO for System 1. Raises ConfigError for another component."""
    if slo.component != SYSTEM1:
        raise ConfigError(
            f"runs hold the invocations of {SYSTEM1} only; there are none of {slo.component!r}"
        )
    return attainment(slo, system1_invocations(run.run)), throughput(run.run, [slo])


def slo_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, bags, or folders with some below.", metavar="RUN…"),
    ],
    slo: Annotated[
        str, typer.Option(help="Component and latency, such as system1=500ms or system1=0.2s.")
    ] = "system1=500ms",
    format_: Annotated[
        Literal["table", "json"], typer.Option("--format", help="For people, or for programs.")
    ] = "table",
) -> None:
    """Who met the latency objective, and how many actions per second count because of it."""
    wanted = parse_slo(slo)
    judged = [(run.name, *judge(run, wanted)) for run in read_runs(runs)]
    if format_ == "json":
        typer.echo(json.dumps([_document(*row) for row in judged]))
    else:
        Console().print(_table(wanted, judged))


def _document(name: str, attained: Attainment, rate: Throughput) -> dict[str, Any]:
    """JSON has no NaN: what has no value is null."""
    values: dict[str, Any] = {"run": name, **asdict(attained), **asdict(rate)}
    values |= {"share": attained.share, "held": attained.held, "qualified_share": rate.share}
    return {
        key: None if isinstance(value, float) and not isfinite(value) else value
        for key, value in values.items()
    }


def _table(slo: Slo, judged: list[tuple[str, Attainment, Throughput]]) -> Table:
    table = Table(
        title=f"{slo.component} within {1000 * slo.latency_s:g} ms; "
        f"held where {PERCENTILE:.0f} % are",
        title_justify="left",
        box=None,
    )
    table.add_column("run", overflow="fold")
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for name, attained, rate in judged:
        table.add_row(
            name,
            str(attained.invocations),
            _number(100 * attained.share, 2) + " %",
            "yes" if attained.held else "no",
            *(_number(1000 * s, 0) for s in (attained.p50_s, attained.p95_s, attained.p99_s)),
            _number(rate.actions_per_s, 1),
            _number(rate.qualified_per_s, 1),
        )
    return table


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if isfinite(value) else "–"
