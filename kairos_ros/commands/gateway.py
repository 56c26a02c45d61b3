"""`kairos gateway`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_ros.commands.listen import address_of, bind, more_files, serve
from kairos_ros.core.address import is_loopback
from kairos_ros.core.calls.dispatch import DISPATCHES, dispatch_called
from kairos_ros.core.calls.orders import ORDERS, order_called
from kairos_ros.core.errors import ConfigError
from kairos_ros.doors.access import server_tls
from kairos_ros.host.extras import require
from kairos_ros.host.orphan import leave_with_launcher

if TYPE_CHECKING:
    from kairos_ros.gateway.backend import Backend

MOST_FILES = 16_384
"""Connections of clients and to servers, as far as this process may have them."""
TOKEN = "KAIROS_GATEWAY_TOKEN"
"""Environment variable with what clients have to bring; a token does not belong on a command
line."""


def gateway_command(
    servers: Annotated[
        list[str],
        typer.Argument(
            help="Servers behind the gateway: http://HOST:PORT/v1 of an OpenAI-compatible one "
            "(its key from $KAIROS_VLM_KEY), with #MODEL where it does not list its models; or "
            "embedded:NAME, a judge in this process.",
        ),
    ],
    listen: Annotated[
        str,
        typer.Option(
            help=f"HOST:PORT to listen on. Beyond this host, clients need the token in ${TOKEN}, "
            "and --tls-cert and --tls-key are needed. Port 0: any free port."
        ),
    ] = "127.0.0.1:8380",
    order: Annotated[
        str, typer.Option(help=f"Which call goes first: {', '.join(ORDERS)}. Safety goes before.")
    ] = "latest_start",
    dispatch: Annotated[
        str, typer.Option(help=f"Which server gets it: {', '.join(DISPATCHES)}.")
    ] = "fewest_calls",
    places: Annotated[
        int,
        typer.Option(
            min=1,
            max=256,
            help="Calls that each server gets at a time; a judge in this process gets one.",
        ),
    ] = 8,
    memory_tokens: Annotated[
        int,
        typer.Option(min=0, help="Room of each server's key-value cache, tokens; 0: not known."),
    ] = 0,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Longest time of a call, waiting included.")
    ] = 30.0,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the gateway, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
) -> None:
    """Put one queue before all models that judge and plan: an OpenAI-compatible server before
    others.

    Judging nodes use it as `openai:http://HOST:PORT/v1#MODEL`; GET /state shows its queue, and
    GET /metrics tells it to Prometheus. Ctrl-C ends it.
    """
    require("httpx", "starlette", "uvicorn", "prometheus_client")
    host, port = address_of(listen)
    token = os.environ.get(TOKEN, "")
    if not is_loopback(host) and not (token and tls_cert and tls_key):
        raise ConfigError(
            f"--listen {listen} is beyond this host: set ${TOKEN}, --tls-cert and --tls-key, or "
            "listen on 127.0.0.1"
        )
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together: give both or neither")
    if tls_cert and tls_key:
        server_tls(tls_cert, tls_key)  # uvicorn would end with a traceback
    chosen, where = order_called(order), dispatch_called(dispatch)
    import uvicorn

    from kairos_ros.gateway.connection import Connection
    from kairos_ros.gateway.gateway import Gateway
    from kairos_ros.gateway.server import application

    gateway = Gateway(
        _backends(servers),
        order=chosen,
        dispatch=where,
        places=places,
        memory_tokens=memory_tokens,
        timeout_s=timeout_s,
    )
    more_files(MOST_FILES)
    bound = bind(host, port)
    leave_with_launcher()
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if tls_cert else "http"
    model = "MODEL" if len(servers) > 1 or servers[0].startswith("http") else servers[0]
    print(
        f"gateway: {scheme}://{shown}:{bound.getsockname()[1]}/v1 before {', '.join(servers)}; "
        f"order {order}, dispatch {dispatch}. Models of fleet files: "
        f"openai:{scheme}://{shown}:{bound.getsockname()[1]}/v1#{model} (Ctrl-C ends it)",
        flush=True,
    )
    server = uvicorn.Server(
        uvicorn.Config(
            application(gateway, token),
            http=Connection,
            log_level="warning",
            ws="none",
            timeout_graceful_shutdown=2,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
        )
    )
    serve(server, bound)
    print("gateway: ended")


def _backends(servers: list[str]) -> "list[Backend]":
    """Raises ConfigError."""
    from kairos_ros.gateway.backend import HttpBackend
    from kairos_ros.gateway.embedded import EmbeddedBackend
    from kairos_ros.vlm.loading import EMBEDDED, IN_PROCESS, KEY, load_judge

    backends: list[Backend] = []
    for server in servers:
        if server.startswith((EMBEDDED, IN_PROCESS)):
            backends.append(EmbeddedBackend(server, load_judge(server)))
        else:
            backends.append(HttpBackend(server, os.environ.get(KEY, "")))
    names = [one.name for one in backends]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{', '.join(twice)} is given twice; name each server once")
    return backends
