"""`kairos doors`."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.commands.listen import address_of, bind, more_files
from kairos_ros.commands.robots.task import NamespaceOption
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.doors.access import access, local_access
from kairos_ros.doors.clients import Limits
from kairos_ros.doors.observation_map import GROOT, map_path, read_map
from kairos_ros.host.extras import require

PORT, GROOT_PORT = 8000, 5555
"""Those that the clients have as a default, too."""
MOST_SOCKETS = 4096
SPARE_FILES = 256
"""Besides sockets of clients: DDS, logs, modules."""


def doors_command(
    observation_map: Annotated[
        str | None,
        typer.Argument(
            metavar="[MAP]",
            help="Observation map of openpi's or GR00T's clients: a file, or one that ships: "
            "aloha, droid, libero, so101; groot_droid, groot_so100. LeRobot's policy type kairos "
            "needs none.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="ADDRESS:PORT for clients. Beyond this host it needs --tokens, --tls-cert and "
            "--tls-key; GR00T's clients are served on this host only. Port 0: any free port. "
            "[default: 127.0.0.1:8000, for GR00T's clients 127.0.0.1:5555]",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="File with a line ROBOT TOKEN for each client; only they may connect."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM, without passphrase.")] = None,
    max_clients: Annotated[
        int, typer.Option(help="Clients at a time; others are refused.", min=1, max=200)
    ] = 64,
    max_message_mb: Annotated[
        float, typer.Option(help="Largest message of a client, in MB.", min=0.01, max=256)
    ] = 16.0,
    idle_s: Annotated[
        float,
        typer.Option(help="Disconnect a client that asks for nothing for so long.", min=0.1),
    ] = 3600.0,
    answer_s: Annotated[
        float,
        typer.Option(help="Answer a request with an error that has no chunk by then.", min=0.1),
    ] = 30.0,
    domain: Annotated[
        int | None,
        typer.Option(help="ROS domain of the fleet [default: $ROS_DOMAIN_ID].", min=0, max=232),
    ] = None,
    namespace: NamespaceOption = "",
) -> None:
    """Serve robots that run LeRobot, openpi's or GR00T's client: each is a robot of the fleet.

    Runs beside the serving node and asks it as a robot node does. Its counters are at /metrics, for
    Prometheus; where robots need tokens, whoever reads it brings $KAIROS_DOORS_TOKEN. Ctrl-C ends
    it.
    """
    require("websockets", "PIL", "prometheus_client")
    path = map_path(observation_map) if observation_map else Path()
    read = read_map(path) if observation_map else None
    groot = read is not None and read.dialect == GROOT
    host, port = address_of(listen or f"127.0.0.1:{GROOT_PORT if groot else PORT}")
    allowed = (local_access if groot else access)(host, tokens, tls_cert, tls_key)
    if domain is not None:
        os.environ["ROS_DOMAIN_ID"] = str(domain)
    from kairos_ros.nodes.doors.process import DoorsProcess, Setup

    limits = Limits(max_clients, round(max_message_mb * 1e6), idle_s, answer_s)
    names = FleetNames.below(namespace)
    setup = Setup(path, read, allowed, limits, names, _most_sockets(max_clients))
    bound = bind(host, port, listening=False)
    shown = f"[{host}]" if ":" in host else host
    scheme = "tcp" if groot else "wss" if allowed.tls else "ws"
    where = f"{scheme}://{shown}:{bound.getsockname()[1]}"
    within = f", namespace {names.namespace}" if names.namespace else ""
    print(
        f"doors: {where} for robots of ROS domain {os.environ.get('ROS_DOMAIN_ID', '0')}{within}",
        flush=True,
    )

    async def run() -> None:
        await DoorsProcess(setup, bound, lambda text: print(text, flush=True)).run()

    asyncio.run(run())
    print("doors: ended")


def _most_sockets(clients: int) -> int:
    """Connections that this process can hold; raises its own limit of open files for them."""
    return max(clients, min(MOST_SOCKETS, more_files(MOST_SOCKETS + SPARE_FILES) - SPARE_FILES))
