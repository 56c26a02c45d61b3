"""A connection that openpi's own client takes for one to openpi's own server.

The client gets the metadata first; then each binary message is an observation and is answered by a
chunk, or by a text, which the client raises as an error (openpi_client/websocket_client_policy.py).
Its messages are answered one after another.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Actions
from kairos_ros.core.wire_check import printable
from kairos_ros.doors.client import Client
from kairos_ros.doors.clients import Clients
from kairos_ros.doors.dialogue import MOST_UNREADABLE, READY_S, count_unreadable, received, send
from kairos_ros.doors.exchange import Exchange, NotServedError, told_of
from kairos_ros.doors.observation_map import ObservationMap
from kairos_ros.doors.openpi.packing import pack, unpack

LOG = logging.getLogger(__name__)


class OpenpiDialogue:
    """The `Dialogue` of openpi's clients."""

    def __init__(
        self,
        connection: ServerConnection,
        clients: Clients,
        read: ObservationMap,
        robot: str,
        peer: str,
    ) -> None:
        self._connection, self._clients = connection, clients
        self.client = Client(robot, read, peer)
        self._exchange = Exchange(clients, self.client)
        self.take = self._exchange.take

    async def run(self) -> None:
        connection, client, clients = self._connection, self.client, self._clients
        clients.topics.join(client)
        await clients.until_ready(client, READY_S)
        await send(connection, pack(_metadata(client)))
        before_ms: float | None = None
        unreadable = 0
        while (data := await received(connection, clients)) is not None:
            came_ns = time.monotonic_ns()
            try:
                if isinstance(data, str):
                    raise WireError("a text; an observation is binary msgpack")
                message = unpack(data)
                answered = await self._while_connected(self._exchange.chunk(message, came_ns))
            except WireError as error:
                unreadable += 1
                count_unreadable(clients, client, error)
                await send(connection, printable(f"bad observation: {error}", 900))
                if unreadable >= MOST_UNREADABLE:
                    text = f"{unreadable} messages in a row were no observations"
                    await connection.close(CloseCode.POLICY_VIOLATION, text)
                    return
                continue
            except NotServedError as error:
                LOG.warning("client %s gets no chunk: %s", client.robot, error)
                await send(connection, printable(f"not served: {error}", 900))
                continue
            unreadable = 0
            reply = pack(_reply(answered, (time.monotonic_ns() - came_ns) / 1e6, before_ms))
            await send(connection, reply)
            self._exchange.replied()
            before_ms = (time.monotonic_ns() - came_ns) / 1e6

    async def _while_connected(self, work: Coroutine[Any, Any, Actions]) -> Actions:
        """Nothing is done for a client that has gone. Raises ConnectionClosed then."""
        task = asyncio.ensure_future(work)
        closed = asyncio.ensure_future(self._connection.wait_closed())
        try:
            await asyncio.wait({task, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._clients.counters["gone_while_waiting"] += 1
                raise ConnectionClosed(None, None)
            return task.result()
        finally:
            task.cancel()
            closed.cancel()


def _metadata(client: Client) -> dict[str, Any]:
    """What `get_server_metadata` of a client gives."""
    policy, read = client.binding.policy, client.map
    shapes: dict[str, Any] = {part.key: [part.size] for part in read.state}
    shapes |= {picture.key: picture.layout for picture in read.images.values()}
    return {
        "server": "kairos_ros",
        "robot": client.robot,
        "session": client.session,
        "policy": policy.name if policy else "",
        "action_horizon": client.chunk_size,
        "action_dim": read.action_dim,
        "control_rate_hz": read.control_rate_hz,
        "observation": shapes,
        "prompt": read.prompt,
        **read.metadata,
    }


def _reply(answered: Actions, infer_ms: float, before_ms: float | None) -> dict[str, Any]:
    """As openpi's server replies, and how the chunk came about. Arrays have one row per action:
    the client's chunk broker takes one row of each."""
    timing: dict[str, Any] = {
        "infer_ms": infer_ms,
        "queued_ms": answered.queued_ns / 1e6,
        "compute_ms": answered.compute_ns / 1e6,
    }
    if before_ms is not None:
        timing["prev_total_ms"] = before_ms
    return {
        "actions": answered.actions,
        "server_timing": timing,
        "policy_timing": {"infer_ms": answered.compute_ns / 1e6},
        "kairos": told_of(answered),
    }
