"""`kairos report`: runs compared on one page that works offline."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.metrics.slo import SYSTEM1, Slo
from kairos_ros.recording.runs.run_source import find_runs, read_runs


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, bags, or folders with some below (studies); the first is the "
            "baseline.",
            metavar="RUN…",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    slo_ms: Annotated[
        float, typer.Option(min=1, max=1e6, help="Latency objective of a chunk, milliseconds.")
    ] = 500.0,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
) -> None:
    """Compare runs on one HTML page: latencies, timelines, horizons, stalls, decisions, SLO.

    The page needs no network and no other file. Large runs are sampled, and the page says so.
    """
    from kairos_ros.lab.report.page import render

    paths = find_runs(runs)
    with Console(stderr=True).status("reading") as status:
        read = []
        for named in read_runs(paths):
            read.append(named)
            status.update(f"read {len(read)} of {len(paths)} runs: {named.name}")
        html = render(read, Slo(SYSTEM1, slo_ms / 1000), status.update)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(html, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}") from None
    typer.echo(f"{out}: {len(read)} run(s), {len(html.encode()) / 1e6:.1f} MB")
    if open_:
        webbrowser.open(out.resolve().as_uri())
