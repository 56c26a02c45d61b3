"""`kairos replay`: recorded tasks against a live serving node."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kairos_ros.bringup.foreground import run_folder
from kairos_ros.bringup.plan import shipped_policy
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.engine.policies.calibration_file import find_calibration
from kairos_ros.host.domain import stay_on_this_host
from kairos_ros.lab.sim.rules import RECORDED, Rules


def replay_command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Bag folder, .mcap file, or trace file (.jsonl, .jsonl.gz).",
            metavar="BAG|TRACES",
        ),
    ],
    robots: Annotated[
        int, typer.Option(min=1, max=500, help="Virtual robots, in at most four processes.")
    ] = 8,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1000.0,
            help="Poisson arrivals, tasks per second; the free robot that waited longest takes "
            "the oldest. Without it every robot takes task after task.",
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many; by default each trace once, and at least two per robot."
        ),
    ] = None,
    accounting: Annotated[
        Literal["replay", "observation"],
        typer.Option(
            help="replay: requests leave at the recorded action, and every round executes what it "
            "executed then. observation: as a robot node, a horizon counts from its observation "
            "and actions executed meanwhile are lost."
        ),
    ] = "replay",
    horizon: Annotated[
        str, typer.Option(help="Horizon policy, such as static:10; `recorded`: as it was.")
    ] = RECORDED,
    lead: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Actions left in the buffer when the next request leaves, where that is not as "
            "recorded; by default what the expected latency takes.",
        ),
    ] = None,
    scheduling: Annotated[
        str, typer.Option(help="Scheduling policy, such as fifo; empty: the server's default.")
    ] = "",
    policy: Annotated[
        str,
        typer.Option(
            help="Policy folder, hub id or emulated:latency_ms=80+35b, which takes its sizes from "
            "the traces; empty: the one that ships, or the one that runs."
        ),
    ] = "",
    max_batch: Annotated[
        int | None, typer.Option(min=1, max=256, help="Largest batch; default: the server's.")
    ] = None,
    external: Annotated[
        bool,
        typer.Option(
            "--external",
            help="Drive the serving node that runs in this ROS domain instead of starting one.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of tasks, and of arrivals.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of this run; default: runs/replay_<date and time>.")
    ] = None,
) -> None:
    """Replay recorded tasks in real time: virtual robots over DDS against a real serving node.

    The robots send what was observed then, and act by count; the server and its policy are real.
    Ends with a summary, and leaves a run folder for `kairos report`.

    Ctrl-C ends it early and keeps what ran; a second one ends it at once.
    """
    served = policy or str(shipped_policy())
    rules = Rules(accounting, horizon, lead, calibration=find_calibration(served))
    if scheduling:
        parse_scheduling(scheduling)
    if external and (scheduling or max_batch):
        raise typer.BadParameter(
            "--scheduling and --max-batch are set where the serving node is started; with "
            "--external it runs already"
        )
    if not external:
        stay_on_this_host()
    from kairos_ros.lab.live_replay.experiment import (  # ROS is loaded only for this command
        ReplayOptions,
        replay,
    )

    options = ReplayOptions(
        source=source,
        robots=robots,
        rate=rate,
        tasks=tasks,
        rules=rules,
        scheduling=scheduling,
        policy=policy,
        external=external,
        max_batch=max_batch,
        seed=seed,
        folder=out or run_folder(Path("runs"), "replay"),
    )
    raise typer.Exit(replay(options))
