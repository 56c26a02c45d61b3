"""`kairos fleet check|schema|show|states|up`: fleet files."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_ros.bringup import Fleet, calibrated, rviz_line, viz
from kairos_ros.core.spec import installed_plugins
from kairos_ros.robot import adapters
from kairos_ros.robot.state_diagram import state_page
from kairos_ros.share import share
from kairos_ros.up import OutOption, RecordOption, RvizOption, run

if TYPE_CHECKING:
    from kairos_ros.fleet.checks import Known
    from kairos_ros.fleet.fleet_file import FleetFile

FleetArgument = Annotated[
    str,
    typer.Argument(
        help="A fleet file, or the name of a shipped one: factory, paper_example.",
        metavar="FILE|NAME",
    ),
]


def check_command(file: FleetArgument) -> None:
    """Say everything that is wrong with a fleet file: line, column, field, value, what is allowed.

    Exit code 2 then, 0 for a file that is right.
    """
    from kairos_ros.document.faults import FaultyFileError, shown
    from kairos_ros.fleet.checks import unlocated

    path = fleet_path(file)
    try:
        fleet = read(path)
    except FaultyFileError as error:
        typer.echo("\n".join(shown(path, error)), err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{path}: {summary(fleet)}")
    for model, users in unlocated(fleet).items():
        typer.echo(
            f"note: before this can run, say under models where {model!r} is, for example "
            f"openai:http://HOST:8000/v1#{model} (used by {', '.join(users)})"
        )


def schema_command() -> None:
    """Print the JSON schema of fleet files, for editors."""
    from kairos_ros.fleet.schema import fleet_schema

    typer.echo(json.dumps(fleet_schema(), indent=2))


def states_command() -> None:
    """Print what a robot does about every violation: a diagram in Mermaid and a table."""
    typer.echo(state_page(), nl=False)


def show_command(
    file: FleetArgument,
    png: Annotated[Path | None, typer.Option(help="Draw it into this PNG, too.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw it into this SVG, too.")] = None,
) -> None:
    """Draw a fleet: robots, their tasks, what those ask of which model, and the servers."""
    from rich.console import Console

    from kairos_ros.fleet.tree import fleet_tree

    fleet = read(fleet_path(file))
    Console().print(fleet_tree(fleet))
    for picture in filter(None, (png, svg)):
        from kairos_ros.fleet.figure import draw_fleet

        draw_fleet(fleet, picture, "png" if picture is png else "svg")
        typer.echo(f"wrote {picture}")


def up_command(
    file: FleetArgument,
    record: RecordOption = False,
    rviz: RvizOption = False,
    out: OutOption = Path("runs"),
) -> None:
    """Run a fleet file's nodes on this host until Ctrl-C, without ros2 launch.

    A node that ends by itself is reported and the others go on; the exit code is 1 then.
    """
    from kairos_ros.fleet_plan import fleet_plan

    path = fleet_path(file)
    folder = out / datetime.now().strftime("fleet_%Y-%m-%d_%H-%M-%S")
    specs = fleet_plan(read(path), path.parent, record=folder / "bag" if record else "")
    if rviz:
        specs.append(viz())
        typer.echo(f"in rviz: {rviz_line()}")
    raise typer.Exit(run(Fleet(specs, folder)))


def read(path: Path) -> "FleetFile":
    """A fleet file, checked against what is installed here. Raises ConfigError."""
    from kairos_ros.fleet.reading import read_fleet

    return read_fleet(path, known_here())


def known_here() -> "Known":
    """What this installation can do."""
    from kairos_ros.fleet.checks import Known

    return Known(
        adapters={*adapters.BUILTIN, *adapters.NEED_A_NODE, *installed_plugins(adapters.GROUP)},
        calibrated=calibrated,
    )


def fleet_path(name: str) -> Path:
    """The file itself, or the shipped one of that name."""
    shipped = share() / "config" / "fleets" / f"{name}.yaml"
    return shipped if Path(name).name == name and not Path(name).exists() else Path(name)


def summary(fleet: "FleetFile") -> str:
    """A fleet in one line."""
    components = sum(len(task.components.used) for task in fleet.tasks.values())
    models = {one.model for task in fleet.tasks.values() for one in task.components.used.values()}
    return (
        f"{len(fleet.robots)} robots in {len(fleet.tasks)} task classes, {components} components "
        f"of {len(models)} models; servers: {fleet.server_cluster.num_servers}"
    )
