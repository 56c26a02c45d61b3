"""What every connection of a client does, whatever it speaks."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Answer
from kairos_ros.core.wire_check import TooLargeError, printable
from kairos_ros.doors.clients import Clients, Member

LOG = logging.getLogger(__name__)
SEND_S = 10.0
"""A client that does not read what it is sent for so long is disconnected."""
READY_S = 2.0
"""A new client waits for a serving node to open its topics, at most for so long."""
MOST_UNREADABLE = 10
"""Messages in a row that cannot be used, before their sender is disconnected."""


class Dialogue(Protocol):
    """One connection of one client."""

    @property
    def client(self) -> Member: ...

    @property
    def take(self) -> Callable[[Answer], None]:
        """Gets the answers that its client has received."""

    async def run(self) -> None:
        """Until the connection ends. The client has joined. Raises ConnectionClosed, and
        TimeoutError for a client that does not read."""


async def send(connection: ServerConnection, data: bytes | str) -> None:
    """Raises TimeoutError for a client that does not read."""
    await asyncio.wait_for(connection.send(data), SEND_S)


async def received(connection: ServerConnection, clients: Clients) -> bytes | str | None:
    """The next message; None: it was idle for too long and is closed."""
    idle_s = clients.limits.idle_s
    try:
        return await asyncio.wait_for(connection.recv(), idle_s)
    except TimeoutError:
        clients.counters["idle_clients"] += 1
        await connection.close(CloseCode.GOING_AWAY, f"no request for {idle_s:g} s")
        return None


def count_unreadable(clients: Clients, client: Member | None, error: WireError) -> None:
    """client: None: nobody has joined by the connection that it came from."""
    kind = "too_large" if isinstance(error, TooLargeError) else "malformed"
    clients.counters[f"refused_{kind}"] += 1
    if client is not None:
        client.counters[f"refused_{kind}"] += 1
        client.last_error = printable(str(error), 300)
    if client is None or client.counters[f"refused_{kind}"] == 1:
        who = client.robot if client else "without a name"
        LOG.warning("client %s sends what cannot be used: %s", who, error)
