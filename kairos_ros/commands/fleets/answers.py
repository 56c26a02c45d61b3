"""What became of a change that a planned fleet was asked for, also where somebody interrupts it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from kairos_ros.core.errors import KairosError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.host.fleet_socket import FleetConnection
from kairos_ros.host.interrupt import sigterm_as_ctrl_c

CALLED_OFF_S = 20.0
LOOK = "`kairos fleet status` says by which plan the fleet runs"
SILENT_S = 6.0
"""Serving nodes that ended with the program of the fleet are not heard any more then."""
TAKEN_OVER_S = 20.0
"""A second serving node that is there serves by then."""


@contextmanager
def interrupted(what: str) -> Iterator[None]:
    """Ctrl-C or SIGTERM meanwhile is an error that says so; both are Ctrl-C from then on."""
    sigterm_as_ctrl_c()
    try:
        yield
    except KeyboardInterrupt:
        raise KairosError(f"interrupted: {what}") from None


def answer_to(line: FleetConnection, names: FleetNames, interrupted: str) -> Mapping[str, Any]:
    """What became of a change. Ctrl-C calls it off. interrupted: what is said then."""
    try:
        return _followed(line, names)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {interrupted}", err=True)
        line.send({"do": "cancel"})
    try:
        return _followed(line, names, CALLED_OFF_S)
    except KeyboardInterrupt:
        return {"refused": "interrupted again", "stays": LOOK}


def _followed(
    line: FleetConnection, names: FleetNames, within_s: float = float("inf")
) -> Mapping[str, Any]:
    """Prints what is told until the change is made or refused."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        message = line.receive()
        if message is None:
            if line.closed:
                return {"refused": "the program that runs the fleet has ended",
                        "stays": _served_by(names)}  # fmt: skip
        elif "told" in message:
            typer.echo(f"  {message['told']}")
        else:
            return message
    return {"refused": f"no answer within {within_s:.0f} s", "stays": LOOK}


def _served_by(names: FleetNames) -> str:
    """By which plan robots are served, once what ended with the program of the fleet is silent."""
    from kairos_ros.nodes.clients.fleet_client import FleetClient

    client = FleetClient("fleet_apply", names)
    until_s = time.monotonic() + TAKEN_OVER_S
    try:
        client.spin(SILENT_S)
        while (state := client.state) is None or not state.active:
            if time.monotonic() >= until_s:
                break
            client.spin(0.2)
    finally:
        client.close()
    if state is None or not state.active:
        return (
            f"no serving node was heard within {TAKEN_OVER_S:.0f} s; if `kairos fleet status` "
            "finds none, start the fleet again with `kairos fleet up`"
        )
    return f"the second serving node serves robots by {state.plan}"
