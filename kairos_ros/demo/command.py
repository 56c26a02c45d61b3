"""`kairos demo`: the command line of the demo."""

import os
import random
import socket
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.core.horizon import parse_horizon
from kairos_ros.core.scheduling import parse_scheduling
from kairos_ros.demo.workload import BACK_TO_BACK, parse_arrivals

MOST_ROBOTS = 28
"""With discovery limited to this host, at most 32 DDS participants find each other."""
LAST_DOMAIN = 101
"""Domains up to here use UDP ports below Linux's range of ephemeral ports."""


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
    arrivals: Annotated[
        str, typer.Option(help="back_to_back, or poisson:RATE in tasks per second.")
    ] = BACK_TO_BACK,
    seed: Annotated[
        int, typer.Option(min=0, max=99, help="Of the tasks: same seed, same scenes.")
    ] = 1,
    policy: Annotated[
        str, typer.Option(help="Policy folder, hub id or emulated:...; empty: the one that ships.")
    ] = "",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Run this and fifo with static:10 on the same tasks, in interleaved half runs "
            "of a third of the duration each.",
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the folder of this run is made.")] = Path("runs"),
    view: Annotated[bool, typer.Option(help="Show the live view when in a terminal.")] = True,
) -> None:
    """Watch simulated arms do real tasks over ROS 2, all served by one batching server.

    Ends with a summary, in the terminal and under runs/.

    Ctrl-C ends it early, with the summary so far; a second one ends it at once.
    """
    parse_arrivals(arrivals)  # what is wrong with the options is told before anything starts
    if scheduling:
        parse_scheduling(scheduling)
    if horizon:
        parse_horizon(horizon)
    stay_on_this_host()
    from kairos_ros.demo import experiment  # ROS is loaded only for this command

    experiment.scenes(policy)
    options = experiment.Options(robots, duration, arrivals, seed, policy, _folder(out))
    serving = {"scheduling": scheduling, "horizon": horizon}
    run = experiment.run_comparison if compare else experiment.run_once
    raise typer.Exit(run(options, serving, view=view))


def _folder(out: Path) -> Path:
    folder = out / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder.mkdir(parents=True)
    return folder


def stay_on_this_host() -> None:
    """Keeps DDS on this host and in a domain of its own, unless the user has chosen otherwise."""
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    if "ROS_DOMAIN_ID" not in os.environ:
        os.environ["ROS_DOMAIN_ID"] = str(free_domain())


def free_domain() -> int:
    """A ROS domain that nobody on this host uses now, and not 0, everybody's default."""
    domains = random.sample(range(1, LAST_DOMAIN + 1), LAST_DOMAIN)
    return next((d for d in domains if not domain_in_use(d)), domains[0])


def domain_in_use(domain: int) -> bool:
    """Whether the first participant's discovery port is taken (DDSI-RTPS 2.5, 9.6.2.3)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", 7400 + 250 * domain + 10))
        except OSError:
            return True
    return False
