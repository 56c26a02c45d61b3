"""`kairos drill`: the command line of the drill."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kairos_ros.bringup.foreground import run_folder
from kairos_ros.core.errors import ConfigError
from kairos_ros.host.domain import stay_on_this_host
from kairos_ros.host.extras import require
from kairos_ros.lab.drill.hostile_clients import WorkerAccess
from kairos_ros.transport.endpoint import check_endpoint
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder, default_folder

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
    domain: Annotated[
        int,
        typer.Option(
            min=-1,
            max=232,
            help="ROS domain of a running fleet to drill instead, with the faults that can be made "
            "in one and with the tasks that it has; -1: a fleet of its own.",
        ),
    ] = -1,
    worker: Annotated[
        str,
        typer.Option(help="With --domain: where a worker of that fleet listens, tcp://HOST:PORT."),
    ] = "",
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Folder with a client key that this worker lets in [default: $KAIROS_KEYS or "
            "~/.config/kairos/keys]."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the folder of this drill is made.")] = Path(
        "runs"
    ),
) -> None:
    """Make faults on purpose in a fleet with a cloud worker, and judge what robots made of them.

    Starts a fleet of its own with the demo's policy and tasks. For every fault and robot: no task
    lost, every executed action proven to be what the robot was answered, moving or holding all the
    time, served again. The exit code is 1 where anything fails, 130 after Ctrl-C.

    A running fleet (--domain) is watched, and judged by what its robots say: nothing is proven.
    """
    require("metaworld", "matplotlib")
    from kairos_ros.lab.drill.faults import FAULTS, choose  # ROS is loaded only for this command

    console = Console()
    if show:
        for fault in FAULTS:
            quickly = "quick" if fault.quick else ""
            console.print(f"{fault.name:17} {quickly:6} {fault.title}", highlight=False)
        return
    faults = choose(only, quick=quick)
    if worker and domain < 0:
        raise ConfigError("--worker names a worker of a running fleet; give its --domain, too")
    access = _access(worker, keys) if worker else None
    if domain < 0:
        stay_on_this_host()
    else:
        os.environ["ROS_DOMAIN_ID"] = str(domain)
    from kairos_ros.lab.drill.drill import DrillOptions, run_drill

    folder = run_folder(out, "drill")
    options = DrillOptions(robots, seed, silence_s, folder, domain >= 0, access)
    raise typer.Exit(run_drill(options, faults, console))


def _access(worker: str, keys: Path | None) -> WorkerAccess:
    """Raises ConfigError for what is no address, and for a folder without the two keys."""
    check_endpoint(worker, security=True)
    folder = KeyFolder(keys or default_folder())
    return WorkerAccess(worker, folder.own(Role.CLIENT), folder.server())
