"""`kairos arm up|plan`: one arm of the launch files without ros2 launch."""

from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.bringup.arms import arguments_of, arm_plan
from kairos_ros.bringup.foreground import (
    ArmArgument,
    Given,
    OutFolder,
    arguments,
    run,
    run_folder,
    show,
)
from kairos_ros.bringup.process_spec import plan_text
from kairos_ros.bringup.processes import Fleet
from kairos_ros.commands.robots.task import NamespaceOption
from kairos_ros.core.fleet_names import FleetNames


def arm_up_command(
    arm: ArmArgument,
    given: Given = None,
    namespace: NamespaceOption = "",
    out: OutFolder = Path("runs"),
    show_args: Annotated[
        bool, typer.Option("--show-args", help="List the arguments with their defaults, and end.")
    ] = False,
) -> None:
    """Run an arm's driver (simulated unless use_sim:=false), robot and serving node until Ctrl-C.

    The same plan as its launch file, without ros2 launch. Give it a task with: kairos task send
    so101_1 "touch the ball"

    A node that ends by itself is reported and the others go on; the exit code is 1 then.
    """
    if show_args:
        show(arguments_of(arm))
        return
    names = FleetNames.below(namespace)
    specs = arm_plan(arm, arguments(given or ()))
    raise typer.Exit(run(Fleet(specs, run_folder(out, f"{arm}_up"), names=names)))


def arm_plan_command(arm: ArmArgument, given: Given = None) -> None:
    """Print which nodes the arm's launch file starts, with their parameters, as JSON."""
    typer.echo(plan_text(arm_plan(arm, arguments(given or ()))))
