"""`kairos fleet check|schema|show|states|up`: fleet files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_ros.bringup.fleet_files import fleet_path, read, runnable
from kairos_ros.bringup.foreground import (
    FleetArgument,
    OutOption,
    RecordOption,
    RvizOption,
    run,
    run_folder,
)
from kairos_ros.bringup.plan import rviz_line, viz
from kairos_ros.bringup.planned.planner import PlanChoices
from kairos_ros.bringup.processes import Fleet
from kairos_ros.commands.fleets.plan import GpusOption, NetworkOption, ProfilesOption
from kairos_ros.commands.fleets.planned import DeviceOption, up_planned
from kairos_ros.commands.robots.task import NamespaceOption
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.planning.workload import Objective
from kairos_ros.robot.supervision.state_diagram import state_page

if TYPE_CHECKING:
    from kairos_ros.fleet.fleet_file import FleetFile


def check_command(file: FleetArgument) -> None:
    """Say everything that is wrong with a fleet file: line, column, field, value, what is allowed.

    Then what keeps `kairos fleet up` from running it on this host. Exit code 2 for either, 0 for a
    file that `up` runs.
    """
    from kairos_ros.document.faults import FaultyFileError, shown

    path = fleet_path(file)
    try:
        fleet = runnable(path)
    except FaultyFileError as error:
        typer.echo("\n".join(shown(path, error)), err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{path}: {summary(fleet)}")


def schema_command() -> None:
    """Print the JSON schema of fleet files, for editors."""
    from kairos_ros.fleet.fleet_file import fleet_schema

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
    namespace: NamespaceOption = "",
    out: OutOption = Path("runs"),
    planned: Annotated[
        bool,
        typer.Option(
            "--planned",
            help="With engines, routes and rates as `kairos fleet plan` says; `kairos fleet apply` "
            "changes them.",
        ),
    ] = False,
    host: Annotated[
        str,
        typer.Option(
            help="Name of this host in server_cluster.hosts: of the plan, only what is on it is "
            "run, as it is planned. The first host runs the serving node."
        ),
    ] = "",
    gpus: GpusOption = None,
    objective: Objective = "weighted",
    network_ms: NetworkOption = 5.0,
    profiles: ProfilesOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Run a fleet file's nodes on this host until Ctrl-C, without ros2 launch.

    A node that ends by itself is reported and the others go on; the exit code is 1 then. The
    options from --host on are for --planned, which --host implies.
    """
    from kairos_ros.bringup.fleet import fleet_plan

    names, path = FleetNames.below(namespace), fleet_path(file)
    how = PlanChoices(gpus, objective, network_ms, tuple(profiles or ()), device, host)
    if planned or host:
        if rviz:
            typer.echo(f"in rviz: {rviz_line(names)}")
        folder = run_folder(out, "fleet")
        raise typer.Exit(up_planned(file, how, names, folder, record=record, rviz=rviz))
    if how != PlanChoices():
        raise ConfigError("--gpus, --objective, --network-ms, --profiles and --device plan the "
                          "fleet: give --planned, too")  # fmt: skip
    fleet = runnable(path)
    folder = run_folder(out, "fleet")
    specs = fleet_plan(fleet, path.parent, record=folder / "bag" if record else "")
    if rviz:
        specs.append(viz())
        typer.echo(f"in rviz: {rviz_line(names)}")
    raise typer.Exit(run(Fleet(specs, folder, names=names)))


def summary(fleet: "FleetFile") -> str:
    """A fleet in one line."""
    components = sum(len(task.components.used) for task in fleet.tasks.values())
    models = {one.model for task in fleet.tasks.values() for one in task.components.used.values()}
    return (
        f"{len(fleet.robots)} robots in {len(fleet.tasks)} task classes, {components} components "
        f"of {len(models)} models; servers: {fleet.server_cluster.num_servers}"
    )
