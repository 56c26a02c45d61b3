"""`kairos trace record`: the options, and nothing that costs an import."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.host.extras import require


def record_command(
    policy: Annotated[Path, typer.Argument(help="Policy folder.")] = Path("models/metaworld_flow"),
    tasks: Annotated[
        str, typer.Option(help="Comma-separated Meta-World tasks; empty means all known ones.")
    ] = "",
    horizons: Annotated[
        str,
        typer.Option(
            help="Horizon policies separated by ';'; empty: static:tuned, static:10, "
            "tail_agreement, calibrated and confidence:t=0.1."
        ),
    ] = "",
    episodes: Annotated[
        int, typer.Option(min=1, help="Episodes per task and horizon policy.")
    ] = 64,
    lead: Annotated[
        int, typer.Option(min=0, help="Actions that robots execute while a chunk is made.")
    ] = 2,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Trace file; without it traces.jsonl.gz in the policy folder."
        ),
    ] = None,
    work: Annotated[Path, typer.Option(help="Finished episodes are kept here.")] = Path(
        "runs/traces"
    ),
    processes: Annotated[int, typer.Option(min=1, max=256, help="Parallel processes.")] = 1,
) -> None:
    """Record simulated tasks, each alone, under each horizon policy, for `kairos study`.

    The traces hold rounds and outcomes, no chunks: a horizon policy is replayed from its own
    traces. Run the same command again to continue a stopped one.
    """
    require("metaworld")
    from kairos_ros.lab.horizons.traces import HORIZONS, record_traces
    from kairos_ros.lab.sim.recorded import TRACES
    from kairos_ros.recording.runs.trace_file import check_writable, write_traces
    from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

    out = out or policy / TRACES
    check_writable(out)
    said_s = 0.0

    def tell(done: int, cells: int, text: str) -> None:
        nonlocal said_s
        if done == cells or sys.stderr.isatty() or time.monotonic() - said_s > 10:
            said_s = time.monotonic()
            end = "\n" if done == cells or not sys.stderr.isatty() else "\r"
            typer.echo(f"{done}/{cells} cells, {text:40}{end}", err=True, nl=False)

    try:
        traces = record_traces(
            policy,
            scenes=tuple(filter(None, (part.strip() for part in tasks.split(","))))
            or tuple(SCENES),
            horizons=tuple(filter(None, (part.strip() for part in horizons.split(";"))))
            or HORIZONS,
            episodes=episodes,
            lead=lead,
            work=work,
            processes=processes,
            finished=tell,
        )
    except KeyboardInterrupt:
        typer.echo("\nstopped; the same command continues", err=True)
        raise typer.Exit(130) from None
    write_traces(out, traces)
    for horizon in dict.fromkeys(trace.horizon_policy for trace in traces):
        of = [trace for trace in traces if trace.horizon_policy == horizon]
        rounds = sum(len(trace.rounds) for trace in of)
        typer.echo(
            f"{horizon:20} {sum(t.success for t in of) / len(of):6.1%} success, "
            f"{rounds / len(of):5.2f} rounds of {sum(t.actions for t in of) / rounds:.1f} actions"
        )
    typer.echo(f"wrote {len(traces)} traces to {out}")
