"""`kairos arm up|demo|plan`: one arm of the launch files without ros2 launch."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.arms_arguments import ARGUMENTS
from kairos_ros.arms_plan import arm_plan
from kairos_ros.bringup import Fleet, plan_text
from kairos_ros.core.errors import ConfigError
from kairos_ros.domain import stay_on_this_host
from kairos_ros.extras import require
from kairos_ros.up import run

ArmArgument = Annotated[
    str, typer.Argument(help=f"One of {', '.join(ARGUMENTS)}.", metavar="ARM", show_default=False)
]
Given = Annotated[
    list[str] | None,
    typer.Argument(
        help="Arguments of the arm's launch file, such as use_sim:=false port:=/dev/ttyACM0; "
        "`ros2 launch --show-args` and docs/so101.md list them.",
        metavar="NAME:=VALUE ...",
    ),
]
OutFolder = Annotated[Path, typer.Option(help="Where the folder of this run is made.")]


def arm_up_command(arm: ArmArgument, given: Given = None, out: OutFolder = Path("runs")) -> None:
    """Run an arm's driver (simulated unless use_sim:=false), robot and serving node until Ctrl-C.

    The same plan as its launch file, without ros2 launch. Give it a task with: ros2 action
    send_goal /so101_1/execute_task kairos_ros/action/ExecuteTask "{instruction: 'touch the ball'}"

    A node that ends by itself is reported and the others go on; the exit code is 1 then.
    """
    specs = arm_plan(arm, arguments(given or ()))
    raise typer.Exit(run(Fleet(specs, _folder(out, f"{arm}_up"))))


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
    if values.get("use_sim", "true") != "true":
        raise ConfigError("the demo moves simulated arms only; kairos arm up runs a real one")
    specs = arm_plan(arm, values)
    stay_on_this_host()
    from kairos_ros.demo.arm_demo import demonstrate  # ROS is loaded only for this command

    raise typer.Exit(demonstrate(arm, specs, tasks, seconds, _folder(out, f"{arm}_demo")))


def arm_plan_command(arm: ArmArgument, given: Given = None) -> None:
    """Print which nodes the arm's launch file starts, with their parameters, as JSON."""
    typer.echo(plan_text(arm_plan(arm, arguments(given or ()))))


def arguments(texts: Sequence[str]) -> dict[str, str]:
    """`["use_sim:=false"]` as launch arguments. Raises ConfigError for one without `:=`."""
    found = {}
    for text in texts:
        name, given, value = text.partition(":=")
        if not given or not name:
            raise ConfigError(f"argument {text!r} must read NAME:=VALUE, as for ros2 launch")
        found[name] = value
    return found


def _folder(out: Path, name: str) -> Path:
    return out / datetime.now().strftime(f"{name}_%Y-%m-%d_%H-%M-%S")
