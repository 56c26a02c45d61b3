"""`kairos arm demo`: a simulated arm does real tasks over its ROS 2 driver."""

from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.bringup.arms import arm_plan
from kairos_ros.bringup.foreground import ArmArgument, Given, OutFolder, arguments, run_folder
from kairos_ros.bringup.plan import flag
from kairos_ros.core.errors import ConfigError
from kairos_ros.host.domain import stay_on_this_host
from kairos_ros.host.extras import require


def arm_demo_command(
    arm: ArmArgument,
    given: Given = None,
    tasks: Annotated[int, typer.Option(min=1, max=1000, help="How many tasks.")] = 20,
    seconds: Annotated[float, typer.Option(min=0.5, max=600, help="Limit of a task.")] = 20.0,
    out: OutFolder = Path("runs"),
) -> None:
    """Watch a simulated arm do real tasks over its ROS 2 driver, served as a fleet is.

    Prints success, rounds and stalls of every task, and draws the one with the most chunks: joints
    against what they were told. Ctrl-C ends it early, with what was done so far.
    """
    require("mujoco", "matplotlib")
    values = arguments(given or ())
    if not flag("use_sim", values.get("use_sim", "true")):
        raise ConfigError("the demo moves simulated arms only; kairos arm up runs a real one")
    specs = arm_plan(arm, values)
    stay_on_this_host()
    from kairos_ros.lab.demos.arm_demo import demonstrate  # ROS is loaded only for this command

    raise typer.Exit(demonstrate(arm, specs, tasks, seconds, run_folder(out, f"{arm}_demo")))
