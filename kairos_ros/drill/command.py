"""`kairos drill`: the command line of the drill."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

MOST_ROBOTS = 16


def drill_command(
    robots: Annotated[
        int, typer.Option(min=1, max=MOST_ROBOTS, help="Simulated arms, one process each.")
    ] = 4,
    only: Annotated[
        str, typer.Option(help="Names of faults, separated by commas, in this order; see --list.")
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the faults that take little time.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List the faults, and make none.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=99, help="Of the tasks.")] = 1,
    silence_s: Annotated[
        float,
        typer.Option(
            min=0.05,
            help="Seconds in which a body may be told nothing at all, neither to move nor to hold.",
        ),
    ] = 1.0,
    out: Annotated[Path, typer.Option(help="Where the folder of this drill is made.")] = Path(
        "runs"
    ),
) -> None:
    """Make faults on purpose in a fleet with a cloud worker, and judge what robots made of them.

    Starts a fleet of its own with the demo's policy and tasks. For every fault and robot: no task
    lost, every executed action proven to be what the robot was answered, moving or holding all the
    time, served again. The exit code is 1 where anything fails, 130 after Ctrl-C.
    """
    from kairos_ros.drill.faults import FAULTS, choose  # ROS is loaded only for this command

    console = Console()
    if show:
        for fault in FAULTS:
            quickly = "quick" if fault.quick else ""
            console.print(f"{fault.name:17} {quickly:6} {fault.title}", highlight=False)
        return
    faults = choose(only, quick=quick)
    from kairos_ros.domain import stay_on_this_host

    stay_on_this_host()
    from kairos_ros.drill.drill import Options, run_drill

    folder = out / datetime.now().strftime("drill_%Y-%m-%d_%H-%M-%S")
    folder.mkdir(parents=True)
    raise typer.Exit(run_drill(Options(robots, seed, silence_s, folder), faults, console))
