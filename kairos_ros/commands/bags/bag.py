"""`kairos bag`, and `kairos trace extract` and `export`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.extras import require

TRACED = tuple(f"kairos_ros/msg/{name}" for name in ("ChunkRequest", "ActionChunk", "TaskEvent"))
"""Types of the messages that traces are made of."""
_Path = Annotated[
    Path,
    typer.Argument(
        help="The bag's folder, its .mcap file, or the folder of its run.", metavar="BAG"
    ),
]


def info_command(bag: _Path) -> None:
    """Topics of a bag, and the tasks that it holds. Repairs it first where that is needed."""
    require("rosbags", "mcap")
    from kairos_ros.recording.fleet_run import read_bag
    from kairos_ros.recording.reader import Bag
    from kairos_ros.recording.runs.summary import summarise

    console = Console()
    with Bag(bag, _say) as opened:
        table = Table("topic", "type", "messages")
        for topic in opened.topics:
            table.add_row(topic.name, topic.type, str(topic.messages))
        length_s = opened.length_s
    console.print(table)
    run = _working("reading the tasks", lambda: read_bag(bag))
    summary = summarise(run)
    console.print(
        f"{length_s:.1f} s, {len(run.robots)} robots, {summary.tasks} tasks finished "
        f"({summary.succeeded} succeeded), {summary.unfinished} not, {len(run.rounds)} rounds",
        highlight=False,
    )
    for policy, result in summary.policies.items():
        console.print(f"{policy}: {result.succeeded} of {result.tasks} succeeded", highlight=False)
    for line in run.left_out:
        console.print(f"left out {line}", highlight=False, markup=False)
    if run.pipeline is not None:
        console.print(
            f"{len(run.pipeline.judged)} judgements, {len(run.pipeline.plans)} questions to the "
            f"planner, {len(run.pipeline.moves)} transitions of robots",
            highlight=False,
        )


def repair_command(bag: _Path) -> None:
    """Make a bag readable whose recorder was killed: rebuild its index and metadata.yaml.

    Reading a bag does the same. What is torn at its end is moved to a file beside it.
    """
    require("rosbags", "mcap")
    from kairos_ros.recording.repair import repair

    folder = bag.parent if bag.is_file() else bag
    done = _working("repairing", lambda: repair(folder))
    typer.echo(f"{folder}: {done or 'nothing to repair'}")


def extract_command(
    bag: _Path,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write, .jsonl or .jsonl.gz.")
    ] = Path("traces.jsonl.gz"),
    full_updates: Annotated[
        bool,
        typer.Option(
            "--full-updates", help="Keep every sampler step's update where the bag has it."
        ),
    ] = False,
) -> None:
    """Turn the finished tasks of a bag into traces, for kairos replay and kairos simulate."""
    require("rosbags", "mcap")
    from kairos_ros.recording.extract import extract
    from kairos_ros.recording.runs.trace_file import check_writable, write_traces

    check_writable(out)
    found = _working("reading the bag", lambda: extract(bag, full_updates=full_updates))
    _working("writing the traces", lambda: write_traces(out, found.traces))
    rounds = sum(len(trace.rounds) for trace in found.traces)
    typer.echo(f"{out}: {len(found.traces)} traces, {rounds} rounds")
    for line in found.messages_left_out:
        typer.echo(f"left out {line}")
    for reason, count in found.left_out.most_common():
        typer.echo(f"left out {count}: {reason}")
    if found.without_chunks:
        typer.echo(
            f"{found.without_chunks} have rounds without chunks: their chunk_updates are missing"
        )


def export_command(
    bag: _Path,
    otlp: Annotated[
        str, typer.Option(help="The OpenTelemetry receiver.", metavar="http://HOST:4318")
    ] = "http://127.0.0.1:4318",
) -> None:
    """Send the tasks of a bag to an OpenTelemetry receiver, as kairos dashboard --otlp does live.

    $OTEL_EXPORTER_OTLP_HEADERS is sent with them.
    """
    require("rosbags", "mcap", "opentelemetry")
    from kairos_ros.recording.events import events
    from kairos_ros.recording.reader import Bag
    from kairos_ros.recording.tasks import sort_events
    from kairos_ros.tracing.otlp import Trace, TraceSender
    from kairos_ros.tracing.spans import task_spans

    with TraceSender(otlp) as sender, Bag(bag, _say) as opened:
        found = _working("reading the bag", lambda: sort_events(events(opened, TRACED)))
        told = [(task.key, task_spans(task)) for task in found.tasks]
        traces = [Trace(key, spans, opened.start_ns) for key, spans in told if spans]
        _working(f"sending to {sender.url}", lambda: sender.send_all(traces))
        for line in opened.left_out:
            typer.echo(f"left out {line}")
    typer.echo(f"{sender.url}: {len(traces)} traces, {sender.sent} spans")
    if lost := sender.dropped.total():
        raise ConfigError(
            f"{lost} spans were not taken; see that a receiver listens at {sender.url}"
        )


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _working(what: str, work: Callable[[], Any]) -> Any:
    with Console(stderr=True).status(what):
        return work()
