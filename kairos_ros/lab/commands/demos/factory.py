"""`kairos fleet demo`: a fleet file at work, while things happen to it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_ros.bringup.fleet_files import fleet_path, runnable
from kairos_ros.bringup.foreground import FleetArgument, run_folder
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.core.errors import ConfigError
from kairos_ros.host.domain import stay_on_this_host
from kairos_ros.host.extras import require

if TYPE_CHECKING:
    from kairos_ros.fleet.fleet_file import FleetFile

SIMULATED = "sim"
MOST_ROBOTS = 24
"""With discovery limited to this host, at most 32 DDS participants find each other."""


def factory_command(
    file: FleetArgument,
    events: Annotated[
        str,
        typer.Option(
            help="What happens, in this order, separated by commas: intruder, knock, lingerer "
            "(each also as NAME:ROBOT), safety (killed for 5 s), planner (3 s slow). Empty: one of "
            "each that the fleet can have."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, max=99, help="Of scenes, intruders and knocks.")] = 1,
    record: Annotated[
        bool, typer.Option(help="Record everything into a bag in the run's folder.")
    ] = True,
    out: Annotated[Path, typer.Option(help="Where the folder of this run is made.")] = Path("runs"),
    view: Annotated[bool, typer.Option(help="Show the live view when in a terminal.")] = True,
) -> None:
    """Run a fleet file's simulated robots with all their services, and let things happen to them.

    Somebody enters a cell, an object is knocked away, the safety service dies, the planner is slow.
    Ends with what every robot did about it, how long that took, and whether it is what the fleet
    file promises; in the terminal and under runs/. Takes one to three minutes.

    Exit code 1 when a robot did not do it, 2 for a fleet file that cannot be shown. Ctrl-C ends it
    early, with the summary so far; a second one ends it at once.
    """
    require("metaworld", "matplotlib")
    from kairos_ros.bringup.fleet import fleet_plan
    from kairos_ros.lab.demos.factory.events import parse_events

    path = fleet_path(file)
    fleet = runnable(path)
    check_simulated(fleet)
    script = parse_events(events, fleet)  # what is wrong is told before anything starts
    folder = run_folder(out, "factory")
    specs = fleet_plan(fleet, path.parent, record=folder / "bag" if record else "")
    stay_on_this_host()
    from kairos_ros.lab.demos.factory.demo import FactoryOptions, run_factory

    options = FactoryOptions(path, fleet, disturbable(specs), script, seed, folder)
    raise typer.Exit(run_factory(options, view=view))


def check_simulated(fleet: "FleetFile") -> None:
    """Raises ConfigError for a fleet to which nothing can be made to happen."""
    for name, group in fleet.robots.items():
        if group.adapter != SIMULATED:
            raise ConfigError(
                f"robot {name} has the adapter {group.adapter!r}; the demo lets things happen to "
                f"simulated robots only ({SIMULATED!r}); kairos fleet up runs this fleet"
            )
        if not fleet.tasks[group.task].scene:
            raise ConfigError(f"task {group.task!r} names no scene; a simulated robot needs one")
    if len(fleet.robots) > MOST_ROBOTS:
        raise ConfigError(f"{len(fleet.robots)} robots; on one host at most {MOST_ROBOTS} are run")


def disturbable(specs: Sequence[ProcessSpec]) -> list[ProcessSpec]:
    """The same nodes, with robots that offer the service `disturb`."""
    return [
        replace(spec, parameters={**spec.parameters, "disturbances": True})
        if spec.executable == "robot_node"
        else spec
        for spec in specs
    ]
