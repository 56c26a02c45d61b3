"""`kairos up`: a fleet in the foreground, its output in the terminal, until Ctrl-C."""

from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.bringup.foreground import (
    CamerasOption,
    OutOption,
    RecordOption,
    RvizOption,
    arguments,
    no_cameras,
    run,
    run_folder,
    show,
)
from kairos_ros.bringup.plan import check_horizon, plan, rviz_line
from kairos_ros.bringup.processes import Fleet
from kairos_ros.bringup.serving_arguments import SERVING_ARGUMENTS, serving_parameters
from kairos_ros.commands.robots.task import NamespaceOption
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.core.scheduling.policies import parse_scheduling


def up_command(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            help="Arguments of serving.launch.py, such as 'policies:=a=FOLDER;b=FOLDER' "
            "compile:=true; --show-args lists them.",
            metavar="NAME:=VALUE ...",
        ),
    ] = None,
    *,
    robots: Annotated[int, typer.Option(min=0, help="Simulated arms: arm_1, arm_2, ...")] = 8,
    policy: Annotated[
        str, typer.Option(help="Policy folder, hub id or emulated:...; empty: the one that ships.")
    ] = "",
    scheduling: Annotated[
        str, typer.Option(help="Scheduling policy, such as fifo; empty: as in serving.yaml.")
    ] = "",
    horizon: Annotated[
        str, typer.Option(help="Horizon policy, such as static:10; empty: as in serving.yaml.")
    ] = "",
    cameras: CamerasOption = "",
    serving: Annotated[
        bool, typer.Option(help="Start the serving node, too; it may also run elsewhere.")
    ] = True,
    record: RecordOption = False,
    rviz: RvizOption = False,
    namespace: NamespaceOption = "",
    out: OutOption = Path("runs"),
    show_args: Annotated[
        bool, typer.Option("--show-args", help="List the arguments with their defaults, and end.")
    ] = False,
) -> None:
    """Run the serving node and simulated arms until Ctrl-C, without ros2 launch.

    A node that ends by itself is reported and the others go on; the exit code is 1 then.
    """
    if show_args:
        show(SERVING_ARGUMENTS)
        return
    names = FleetNames.below(namespace)
    options = {"policy": policy, "scheduling": scheduling, "horizon": horizon}
    serve = serving_parameters(arguments(given or ()) | {n: v for n, v in options.items() if v})
    if "scheduling" in serve:
        parse_scheduling(serve["scheduling"])
    if "horizon" in serve and "policies" not in serve:
        check_horizon(serve["horizon"], serve.get("policy", ""))
    folder = run_folder(out, "up")
    specs = plan(
        robots,
        record=folder / "bag" if record else "",
        serve=serve,
        view=rviz,
        cameras=cameras,
    )
    if serving and robots and (notice := no_cameras(serve.get("policy", ""), cameras)):
        typer.echo(notice, err=True)
    specs = specs if serving else specs[1:]
    if not specs:
        raise ConfigError("nothing to start: give --robots or leave out --no-serving")
    if rviz:
        typer.echo(f"in rviz: {rviz_line(names)}")
    fleet = Fleet(specs, folder, names=names)
    raise typer.Exit(run(fleet))
