"""`kairos bag export`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.extras import require


def export_command(
    bags: Annotated[
        list[Path], typer.Argument(help="Folders of bags, or their .mcap files.", metavar="BAG...")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist.")],
    format: Annotated[
        str, typer.Option(help="lerobot: a LeRobot dataset, format 3.0.")
    ] = "lerobot",
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Tasks of one of these kinds: succeeded, failed, intervened; several times, or "
            "with commas."
        ),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="No tasks of these kinds, given in the same way.")
    ] = None,
    robots: Annotated[
        str, typer.Option(help="Names of robots with commas between, such as arm_*; empty: all.")
    ] = "",
    tasks: Annotated[
        str,
        typer.Option(help="Kinds, scenes or instructions of tasks, in the same way; empty: all."),
    ] = "",
    from_judge: Annotated[
        str,
        typer.Option(
            help="Name of a monitor, such as /kairos/monitor, that says which tasks succeeded and "
            "failed; empty: the robot."
        ),
    ] = "",
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="With what the cameras showed.")
    ] = True,
    video: Annotated[
        bool, typer.Option("--video/--no-video", help="Pictures as AV1 videos, else as PNG.")
    ] = True,
    oldest_picture: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Seconds, if not 2.5 control periods. Tasks with a frame whose picture is older "
            "are left out.",
        ),
    ] = None,
    repo_id: Annotated[
        str, typer.Option(help="Of the dataset; empty: kairos/ and the last part of --out.")
    ] = "",
) -> None:
    """Turn the tasks of bags into a LeRobot dataset, one episode per task.

    A frame for every action that an arm executed: the state before it, the action after the guard,
    what the cameras showed, the instruction, and what judges and people did.
    """
    require("rosbags", "mcap", "lerobot", "datasets", "av")
    from kairos_ros.recording.datasets.episode import Kind
    from kairos_ros.recording.datasets.export import Choice, export

    if format != "lerobot":
        raise ConfigError(f"--format {format!r} is unknown; lerobot is the only one")
    kinds: dict[str, frozenset[Kind]] = {}
    for option, given in (("--only", only), ("--without", without)):
        named = set(_parts(",".join(given or ())))
        if strange := named - set(Kind):
            told = ", ".join(sorted(strange))
            raise ConfigError(f"{option} {told}: choose of {', '.join(Kind)}")
        kinds[option] = frozenset(map(Kind, named))
    choice = Choice(
        robots=_parts(robots),
        tasks=_parts(tasks),
        only=kinds["--only"],
        without=kinds["--without"],
        judge=from_judge,
        pictures=pictures,
        video=video,
        oldest_picture_s=oldest_picture,
    )
    repo_id = repo_id or f"kairos/{out.resolve().name}"
    with Progress(console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task("exporting", total=1.0)
        done = export(
            bags, out, choice, repo_id, _say, lambda share: bar.update(work, completed=share)
        )
    told = ", ".join(f"{done.kinds[kind]} {kind}" for kind in Kind)
    typer.echo(f"{out}: {len(done.episodes)} episodes ({told}), {done.frames} frames")
    for line in done.messages_left_out:
        typer.echo(f"left out {line}")
    for reason, count in done.left_out.most_common():
        typer.echo(f"left out {count} task{'s' if count > 1 else ''}: {reason}")
    typer.echo(
        f"next: lerobot-train --dataset.repo_id={repo_id} --dataset.root={out} --policy.type=act "
        "--policy.push_to_hub=false --output_dir=runs/act"
    )


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _say(text: str) -> None:
    typer.echo(text, err=True)
