"""A connection of a robot without ROS: its requests are handed on, and its answers handed back."""

import asyncio
import logging
import time

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Answer
from kairos_ros.core.server_status import ServerStatus
from kairos_ros.core.wire_check import printable
from kairos_ros.doors.clients import Clients
from kairos_ros.doors.dialogue import MOST_UNREADABLE, READY_S, count_unreadable, received, send
from kairos_ros.doors.native.robot_client import RobotClient
from kairos_ros.transport.frames import FrameLimits, Message
from kairos_ros.transport.rate import Budgets, RateDecision, RateLimit
from kairos_ros.transport.robot_link.messages import (
    answer_message,
    error_message,
    read_announce,
    read_report,
    read_request,
    welcome_message,
)
from kairos_ros.transport.robot_link.one_frame import pack, unpack
from kairos_ros.transport.robot_link.server_message import server_message

LOG = logging.getLogger(__name__)
QUEUED = 64
"""Messages that wait for a robot that does not read; those beyond are dropped and counted."""
LIMIT = RateLimit()
"""Far more than a robot that asks for every single action at 100 Hz."""


class RobotDialogue:
    """The `Dialogue` of robots without ROS."""

    def __init__(
        self, connection: ServerConnection, clients: Clients, robot: str, peer: str
    ) -> None:
        self._connection, self._clients = connection, clients
        self._outbox: asyncio.Queue[Message] = asyncio.Queue(QUEUED)
        self.client = RobotClient(robot, peer, self._tell)
        most = clients.limits.message_bytes
        self._limits = FrameLimits(frames=1024, message_bytes=most, array_bytes=most, dims=2)
        self._budgets = Budgets(LIMIT)

    def take(self, answer: Answer) -> None:
        self._put(answer_message(answer))

    async def run(self) -> None:
        await send(self._connection, pack(welcome_message(self.client.robot, self.client.session)))
        both = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for ended in both:
                if ended.done():
                    ended.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await send(self._connection, pack(await self._outbox.get()))

    async def _read(self) -> None:
        """Until the connection ends."""
        unreadable = 0
        while (data := await received(self._connection, self._clients)) is not None:
            if self._budgets.spend(0, len(data), time.monotonic()) is not RateDecision.READ:
                self._clients.counters["too_fast"] += 1
                text = f"more than {LIMIT.messages_per_s:g} messages per second"
                LOG.warning("client %s sends %s", self.client.robot, text)
                await self._connection.close(CloseCode.POLICY_VIOLATION, text)
                return
            try:
                if isinstance(data, str):
                    raise WireError("a text; messages are binary")
                await self._handle(unpack(data, self._limits))
                unreadable = 0
            except WireError as error:
                unreadable += 1
                count_unreadable(self._clients, self.client, error)
                self._put(error_message(printable(str(error), 900)))
                if unreadable >= MOST_UNREADABLE:
                    text = f"{unreadable} messages in a row could not be used"
                    await self._connection.close(CloseCode.POLICY_VIOLATION, text)
                    return

    async def _handle(self, message: Message) -> None:
        client, clients = self.client, self._clients
        match message.kind:
            case "request":
                request = read_request(message, client.robot, client.session)
                client.check(request)
                if not client.counters["requests"]:
                    await clients.until_ready(client, READY_S)
                client.counters["requests"] += 1
                clients.topics.send(client, request)
            case "report":
                report = read_report(message)
                if client.reported(report, time.monotonic_ns()) and client.announced:
                    clients.topics.tell(client)
            case "announce":
                announce = read_announce(message)
                if client.announced is not None:
                    raise WireError("a second announcement; connect again")
                client.announced = announce
                clients.topics.join(client)
            case kind:
                raise WireError(f"messages of kind {printable(kind, 40)!r} are not known")

    def _tell(self, status: ServerStatus) -> None:
        self._put(server_message(status))

    def _put(self, message: Message) -> None:
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.client.counters["not_read"] += 1
