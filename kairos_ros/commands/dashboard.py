"""`kairos dashboard`."""

import contextlib
import ipaddress
import os
import secrets
import socket
from typing import Annotated

import typer

from kairos_ros.commands.listen import address_of, bind, serve
from kairos_ros.commands.robots.task import NamespaceOption
from kairos_ros.core.address import is_loopback
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.host.extras import require


def dashboard_command(
    listen: Annotated[
        str,
        typer.Option(
            help="HOST:PORT to listen on. Beyond this host, clients need the token that is printed "
            "with the address, or that of $KAIROS_DASHBOARD_TOKEN. Port 0: any free port."
        ),
    ] = "127.0.0.1:8370",
    domain: Annotated[
        int | None,
        typer.Option(help="ROS domain of the fleet [default: $ROS_DOMAIN_ID].", min=0, max=232),
    ] = None,
    namespace: NamespaceOption = "",
    gateway: Annotated[
        str,
        typer.Option(
            help="Show this gateway's queue, too: http://HOST:PORT of `kairos gateway`. Its token "
            "comes from $KAIROS_GATEWAY_TOKEN."
        ),
    ] = "",
    otlp: Annotated[
        str,
        typer.Option(
            help="Send a trace of each task to this OpenTelemetry receiver: http://HOST:4318. "
            "$OTEL_EXPORTER_OTLP_HEADERS is sent with it."
        ),
    ] = "",
) -> None:
    """Show the fleet in a browser: states, horizons, waits and reasons, objectives, cameras.

    The same in numbers is at /metrics, for Prometheus. Read only: nothing on the page changes the
    fleet. Ctrl-C ends it.
    """
    names = FleetNames.below(namespace)
    host, port = address_of(listen)
    if domain is not None:
        os.environ["ROS_DOMAIN_ID"] = str(domain)
    import uvicorn

    from kairos_ros.dashboard.gateway_panel import GatewayPanel
    from kairos_ros.dashboard.server import application
    from kairos_ros.dashboard.watch import Watch

    sender, traces = None, None
    if otlp:
        require("opentelemetry")
        from kairos_ros.tracing.fleet_traces import Traces
        from kairos_ros.tracing.otlp import TraceSender

        sender = TraceSender(otlp)
        traces = Traces(sender)
    panel = GatewayPanel(gateway) if gateway else None
    bound = bind(host, port)
    port = bound.getsockname()[1]
    token = os.environ.get("KAIROS_DASHBOARD_TOKEN", "")
    if not token and not is_loopback(host):
        token = secrets.token_urlsafe(16)
    hosts = ["*"] if token else ["127.0.0.1", "localhost", "[::1]"]
    shown = f"[{host}]" if ":" in host else host
    if ipaddress.ip_address(host).is_unspecified:
        shown = socket.gethostname()
    within = f", namespace {names.namespace}" if names.namespace else ""
    with sender or contextlib.nullcontext(), Watch(names, traces) as watch:
        print(
            f"dashboard: http://{shown}:{port}/{f'?token={token}' if token else ''} "
            f"(ROS domain {os.environ.get('ROS_DOMAIN_ID', '0')}{within}; Ctrl-C ends it)",
            flush=True,
        )
        server = uvicorn.Server(
            uvicorn.Config(
                application(watch, token, hosts, panel, traces),
                log_level="warning",
                ws="none",
                lifespan="off",
                timeout_graceful_shutdown=2,
            )
        )
        serve(server, bound)
    if sender is not None:
        lost = f", {sender.dropped.total()} were not taken" if sender.dropped else ""
        print(f"dashboard: {sender.sent} spans sent to {sender.url}{lost}")
    print("dashboard: ended")
