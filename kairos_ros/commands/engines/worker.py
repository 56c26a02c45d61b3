"""`kairos worker`: an engine of its own, for serving nodes elsewhere."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from kairos_ros.commands.listen import address_of
from kairos_ros.core.address import is_loopback
from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.pool.demand import read_replica_count
from kairos_ros.engine.pool.ray_pool import RayPlan
from kairos_ros.engine.registry import read_registry, registry_of
from kairos_ros.engine.worker.__main__ import WorkerPlan, run_worker
from kairos_ros.host.extras import require
from kairos_ros.host.orphan import leave_with_launcher
from kairos_ros.transport.endpoint import Insecure, check_endpoint, is_local
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder, default_folder
from kairos_ros.transport.sockets import CurveClient, ListenKeys


def worker_command(
    listen: Annotated[
        str, typer.Option(help="Serve here: tcp://ADDRESS:PORT, or ipc:///PATH on one host.")
    ] = "",
    connect: Annotated[
        str,
        typer.Option(
            help="From behind NAT: connect to a serving node that listens at tcp://HOST:PORT."
        ),
    ] = "",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=POLICY, repeatable: what clients ask for, and the LeRobot policy folder, "
            "hub id or emulated:... behind it."
        ),
    ] = None,
    registry: Annotated[
        Path | None, typer.Option(help="YAML file with `NAME: POLICY` lines (docs/cloud.md).")
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:N; one worker per GPU.")
    ] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a forward pass.")] = 1,
    max_batch: Annotated[int, typer.Option(min=1, max=256, help="Largest batch.")] = 16,
    pool: Annotated[
        Literal["", "ray"],
        typer.Option(help="ray: replicas in processes that Ray places, on this host or others."),
    ] = "",
    replicas: Annotated[
        str,
        typer.Option(
            help="With --pool: N engines, each with every policy; or LEAST..MOST, as many of them "
            "as are busy."
        ),
    ] = "2",
    ray_address: Annotated[
        str,
        typer.Option(
            help="With --pool ray: HOST:PORT of a cluster's head, or auto for the one this host "
            "is in [default: a private Ray on this host]."
        ),
    ] = "",
    tokenizer: Annotated[
        str, typer.Option(help="Folder or hub id that replaces the policy's tokenizer.")
    ] = "",
    allowed_steps: Annotated[
        str,
        typer.Option(help="Further processor steps that may be loaded: A,B (docs/security.md)."),
    ] = "",
    rtc: Annotated[
        bool,
        typer.Option(help="Guide chunks to begin with what robots have committed (docs/rtc.md)."),
    ] = False,
    compile_: Annotated[
        bool,
        typer.Option("--compile", help="Compile samplers: loading takes minutes longer."),
    ] = False,
    key: Annotated[
        str, typer.Option(help="Which key of this host to use, if it has several.")
    ] = "",
    server_key: Annotated[
        str,
        typer.Option(
            help="With --connect: which trusted server key to expect, if there are several."
        ),
    ] = "",
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of keys [default: $KAIROS_KEYS or ~/.config/kairos/keys]."),
    ] = None,
    insecure_loopback: Annotated[
        bool,
        typer.Option(help="Use no keys on tcp://127.0.0.1: every user of this host can connect."),
    ] = False,
    report_s: Annotated[
        float, typer.Option(min=0, help="Seconds between metrics lines in the log; 0: none.")
    ] = 10.0,
    metrics: Annotated[
        str,
        typer.Option(
            help="ADDRESS:PORT of this host, such as 127.0.0.1:9464, where Prometheus scrapes it."
        ),
    ] = "",
) -> None:
    """Run policies for serving nodes anywhere, until SIGTERM or Ctrl-C.

    What runs then is finished, and what waits is answered as not served: its serving node places it
    elsewhere. The exit status is that of the workers of a serving node (docs/engine.md).
    """
    if bool(listen) == bool(connect):
        raise ConfigError("give either --listen ENDPOINT or --connect ENDPOINT")
    if bool(policy) == (registry is not None):
        raise ConfigError("give either --policy NAME=POLICY (repeatable) or --registry FILE")
    endpoint = listen or connect
    if endpoint.startswith("inproc://"):
        raise ConfigError(f"{endpoint}: nobody outside this process could reach it; use ipc://PATH")
    check_endpoint(endpoint, security=True, dial=bool(connect))
    scraped = _scraped(metrics) if metrics else None
    defaults = EngineOptions(
        "", device, dtype, threads, max_batch, tokenizer, allowed_steps, rtc, compile_
    )
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    plan = WorkerPlan(
        endpoint,
        read_registry(registry, defaults) if registry else registry_of(policy or [], defaults),
        _security(endpoint, bool(connect), insecure_loopback, keys, key, server_key),
        dial=bool(connect),
        report_s=report_s,
        pool=RayPlan(read_replica_count(replicas), ray_address) if pool else None,
        metrics=scraped,
    )
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s worker[{os.getpid()}] %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    leave_with_launcher()
    raise typer.Exit(run_worker(plan))


def _scraped(metrics: str) -> tuple[str, int]:
    """Raises ConfigError for an address beyond this host, and where the library is missing."""
    require("prometheus_client")
    host, port = address_of(metrics, "--metrics")
    if not is_loopback(host):
        raise ConfigError(
            f"--metrics {metrics} is beyond this host, where everybody could read them: listen on "
            "127.0.0.1 and let an agent on this host, or a tunnel, hand them on"
        )
    return host, port


def _security(
    endpoint: str, dial: bool, insecure: bool, folder: Path | None, key: str, server: str
) -> ListenKeys | CurveClient | Insecure | None:
    """Keys on the network, unless loopback without them was asked for; nothing on one host."""
    if is_local(endpoint):
        return None
    if insecure:
        return Insecure.LOOPBACK
    keys = KeyFolder(folder or default_folder())
    if dial:
        return CurveClient(keys.own(Role.CLIENT, key), keys.server(server))
    return ListenKeys(keys.own(Role.SERVER, key), keys)
