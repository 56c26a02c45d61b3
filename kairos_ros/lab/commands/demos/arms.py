"""`kairos demo`: the command line of the demo."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kairos_ros.bringup.foreground import CamerasOption, no_cameras, run_folder
from kairos_ros.bringup.plan import check_horizon, own_cameras, rviz_line
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.host.domain import stay_on_this_host
from kairos_ros.host.extras import require
from kairos_ros.lab.testbed.cloud import Paces, parse_cuts
from kairos_ros.lab.testbed.workload import BACK_TO_BACK, parse_arrivals
from kairos_ros.robot.cameras.cameras_text import parse_cameras

MOST_ROBOTS = 28
"""With discovery limited to this host, at most 32 DDS participants find each other."""


def demo_command(
    robots: Annotated[
        int, typer.Option(min=1, max=MOST_ROBOTS, help="Simulated arms, one process each.")
    ] = 8,
    scheduling: Annotated[
        str, typer.Option(help="Scheduling policy, such as fifo; empty: the server's default.")
    ] = "",
    horizon: Annotated[
        str, typer.Option(help="Horizon policy, such as static:10; empty: the server's default.")
    ] = "",
    duration: Annotated[
        float,
        typer.Option(
            min=1,
            max=86400,
            help="Seconds in which robots get tasks, counted from the end of the start-up; running "
            "tasks may finish for 20 s more.",
        ),
    ] = 120.0,
    rtc: Annotated[
        bool, typer.Option("--rtc", help="Guide chunks to begin with what the arms have committed.")
    ] = False,
    arrivals: Annotated[
        str, typer.Option(help="back_to_back, or poisson:RATE in tasks per second.")
    ] = BACK_TO_BACK,
    seed: Annotated[
        int, typer.Option(min=0, max=99, help="Of the tasks: same seed, same scenes.")
    ] = 1,
    policy: Annotated[
        str, typer.Option(help="Policy folder, hub id or emulated:...; empty: the one that ships.")
    ] = "",
    cameras: CamerasOption = "",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Run this and fifo with static:tuned (static:10 for a policy without a "
            "calibration) on the same tasks, in interleaved half runs of a third of the duration "
            "each.",
        ),
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Record everything into a bag in the run's folder.")
    ] = False,
    cloud: Annotated[
        bool,
        typer.Option(
            "--cloud",
            help="Start a cloud worker, too, behind an emulated link of 100 ms and 1 Gbit/s; both "
            "engines take as long as a large model would.",
        ),
    ] = False,
    cloud_cut: Annotated[
        str,
        typer.Option(
            help="Cut that link meanwhile: FROM:FOR in seconds, such as 20:5, several separated by "
            "commas. Implies --cloud."
        ),
    ] = "",
    rviz: Annotated[
        bool, typer.Option("--rviz", help="Draw the fleet for rviz, too, and tell how to open it.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the folder of this run is made.")] = Path("runs"),
    view: Annotated[bool, typer.Option(help="Show the live view when in a terminal.")] = True,
) -> None:
    """Watch simulated arms do real tasks over ROS 2, all served by one batching server.

    Ends with a summary, in the terminal and under runs/.

    Ctrl-C ends it early, with the summary so far; a second one ends it at once.
    """
    require("metaworld", "matplotlib")
    parse_arrivals(arrivals)  # what is wrong with the options is told before anything starts
    if scheduling:
        parse_scheduling(scheduling)
    cameras, policy = own_cameras(cameras, policy)
    parse_cameras(cameras)
    if horizon:
        check_horizon(horizon, policy)
    cuts = parse_cuts(cloud_cut)
    if compare and (cloud or cuts):
        raise ConfigError("--compare compares configurations of the edge; leave --cloud out")
    if rtc and (cloud or cuts):
        raise ConfigError("--rtc is for the edge: the demo's cloud worker does not guide")
    stay_on_this_host()
    domain = os.environ["ROS_DOMAIN_ID"]
    print(f"in a browser: kairos dashboard --domain {domain}", flush=True)
    if notice := no_cameras(policy, cameras):
        print(notice, flush=True)
    if rviz:
        print(f"in rviz: {rviz_line()}", flush=True)
    from kairos_ros.lab.demos import experiment

    experiment.scenes(policy)
    paces = Paces() if cloud or cuts else None
    folder = run_folder(out)
    options = experiment.DemoOptions(
        robots, duration, arrivals, seed, policy, folder, record, paces, cuts, rviz, cameras
    )
    serving: dict[str, Any] = {"scheduling": scheduling, "horizon": horizon}
    serving |= {"rtc": True} if rtc else {}
    run = experiment.run_comparison if compare else experiment.run_once
    raise typer.Exit(run(options, serving, view=view))
