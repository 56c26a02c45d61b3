"""`kairos record`: a fleet's bag, in the foreground until Ctrl-C."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from kairos_ros.commands.robots.task import NamespaceOption
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.host.extras import require
from kairos_ros.recording.selection import parse_topics


def record_command(
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the new bag; runs/bag_<date and time> by default."),
    ] = None,
    full_updates: Annotated[
        bool,
        typer.Option(
            "--full-updates", help="Record whole updates of the sampler, not only lengths."
        ),
    ] = False,
    duration: Annotated[
        float, typer.Option(min=0, help="Seconds after which recording ends; 0: at Ctrl-C.")
    ] = 0.0,
    topics: Annotated[
        str,
        typer.Option(
            help="Regular expression for whole topic names, instead of the fleet's own topics."
        ),
    ] = "",
    metadata_version: Annotated[
        Literal["5", "7", "9"],
        typer.Option(
            help="Version of metadata.yaml: 5 for Humble, 7 for Iron, 9 for Jazzy and later."
        ),
    ] = "9",
    compression: Annotated[
        Literal["none", "zstd"], typer.Option(help="Compression of the chunks in the MCAP file.")
    ] = "none",
    namespace: NamespaceOption = "",
) -> None:
    """Record what a fleet says into a rosbag2 bag (MCAP), for replay, traces and reports.

    Finds robots that come later, too. ROS_DOMAIN_ID and --namespace say which fleet it listens to.
    """
    names = FleetNames.below(namespace)
    parse_topics(topics)  # what is wrong with it is told before ROS is loaded
    require("rosbags", "mcap")
    import rclpy

    from kairos_ros.nodes.process import join_ros, stop_on_signals
    from kairos_ros.nodes.recorder.node import record

    stop = stop_on_signals()
    join_ros([])
    try:
        record(
            stop,
            lambda text: print(text, file=sys.stderr, flush=True),
            names=names,
            out=str(out or ""),
            full_updates=full_updates,
            duration_s=duration,
            topics=topics,
            metadata_version=int(metadata_version),
            compression=compression,
        )
    finally:
        rclpy.try_shutdown()
