"""A connection that Isaac-GR00T's PolicyClient takes for one to its own PolicyServer.

Each message names an endpoint and is answered, whatever comes: by what the endpoint gives, or by
`{"error": text}`, which the client raises. An observation of several robots, as vectorised
simulations send it, makes each of them a robot of the fleet.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kairos_ros.core.errors import KairosError, WireError
from kairos_ros.core.exchange import Actions
from kairos_ros.core.wire_check import printable
from kairos_ros.doors.access import Access, AccessDeniedError
from kairos_ros.doors.client import Client
from kairos_ros.doors.clients import LOOK_S, Clients, NameTakenError
from kairos_ros.doors.dialogue import count_unreadable
from kairos_ros.doors.exchange import Exchange, NotServedError, told_of
from kairos_ros.doors.groot.modalities import actions_of, modality_config, one_robot, rows_of
from kairos_ros.doors.groot.packing import ArrayForm, pack, unpack
from kairos_ros.doors.groot.zmtp import Message
from kairos_ros.doors.observation_map import ObservationMap

LOG = logging.getLogger(__name__)
REJOIN_S = 2.0
"""A client that comes again waits so long for the end of its earlier connection to be noted."""
ENDPOINTS = "get_action, get_modality_config, reset, ping"


@dataclass(frozen=True, slots=True)
class Answered:
    """What comes of one message."""

    reply: bytes
    served: Sequence[Exchange] = ()
    """The robots that a chunk is in the reply for."""


class GrootDialogue:
    """What is said on one connection. Its requests are answered one after another."""

    def __init__(self, clients: Clients, read: ObservationMap, access: Access, peer: str) -> None:
        self._clients, self._map, self._access, self._peer = clients, read, access, peer
        self._robots: list[Exchange] = []
        self._named = ""
        """By its token."""

    async def answer(self, message: Message) -> Answered:
        """To whatever came."""
        form, served = ArrayForm.NPY, list[Exchange]()
        try:
            if message.wrong is not None:
                raise message.wrong
            request, form = unpack(message.body)
            self._admit(request)
            reply, served = await self._reply(request)
        except WireError as error:
            client = self._robots[0].client if self._robots else None
            count_unreadable(self._clients, client, error)
            reply = _error(f"bad request: {error}")
        except (AccessDeniedError, NameTakenError) as error:
            self._clients.counters["refused_clients"] += 1
            LOG.warning("refused a client from %s: %s", self._peer, error)
            reply = _error(str(error))
        except NotServedError as error:
            name = self._robots[0].client.robot if self._robots else self._peer
            LOG.warning("client %s gets no chunk: %s", name, error)
            reply = _error(f"not served: {error}")
        return Answered(pack(reply, form), served)

    def leave(self) -> None:
        """Its connection has ended, or has asked for nothing for long: it may join again."""
        for robot in self._robots:
            self._clients.leave(robot.client)
        self._robots = []

    def _admit(self, request: Mapping[Any, Any]) -> None:
        """Raises AccessDeniedError."""
        token = request.get("api_token") or ""
        if not isinstance(token, str):
            raise AccessDeniedError("api_token must be text")
        named = self._access.robot_of("", f"Api-Key {token}")
        if self._robots and named != self._named:
            raise AccessDeniedError(f"this connection is that of robot {self._named}")
        self._named = named

    async def _reply(self, request: Mapping[Any, Any]) -> tuple[Any, list[Exchange]]:
        """And the robots that a chunk is in it for. Raises WireError, AccessDeniedError,
        NameTakenError and NotServedError."""
        endpoint = request.get("endpoint", "get_action")
        if endpoint == "ping":
            return {"status": "ok", "message": "kairos doors is running"}, []
        if endpoint == "get_modality_config":
            (robot,) = await self._joined(1)
            end_ns = time.monotonic_ns() + round(self._clients.limits.answer_s * 1e9)
            await robot.until_served(end_ns)
            return modality_config(self._map, robot.client.chunk_size), []
        if endpoint == "reset":
            for robot in self._robots:
                robot.client.end_task()
                self._clients.topics.tell(robot.client)
            return {}, []
        if endpoint == "get_action":
            data = request.get("data")
            if not isinstance(data, Mapping):
                raise WireError(f"the data of get_action are {type(data).__name__}")
            if "observation" in data:
                return await self._actions(data["observation"])
            (actions, _), served = await self._actions(one_robot(data))
            return {key: values[0] for key, values in actions.items()}, served
        if endpoint == "kill":
            raise AccessDeniedError(
                "clients cannot end this server; end kairos doors where it runs"
            )
        name = printable(str(endpoint), 40)
        raise WireError(f"there is no endpoint {name!r}; there are {ENDPOINTS}")

    async def _actions(self, observation: Any) -> tuple[tuple[Any, Any], list[Exchange]]:
        came_ns = time.monotonic_ns()
        rows = rows_of(observation, self._map)
        robots = await self._joined(len(rows.robots))
        outcomes = await asyncio.gather(
            *(robot.chunk(row, came_ns) for robot, row in zip(robots, rows.robots, strict=True)),
            return_exceptions=True,
        )
        answered = [outcome for outcome in outcomes if isinstance(outcome, Actions)]
        if len(answered) < len(robots):
            raise _first_failure(robots, outcomes)
        infer_ms = (time.monotonic_ns() - came_ns) / 1e6
        told = [
            {
                "robot": robot.client.robot,
                "infer_ms": infer_ms,
                "queued_ms": one.queued_ns / 1e6,
                "compute_ms": one.compute_ns / 1e6,
                **told_of(one),
            }
            for robot, one in zip(robots, answered, strict=True)
        ]
        actions = actions_of([one.actions for one in answered], self._map, flat=rows.flat)
        return (actions, {"kairos": told}), robots

    async def _joined(self, count: int) -> list[Exchange]:
        """The first so many robots of this connection; they join the fleet when they first ask."""
        clients = self._clients
        if self._named and count > 1:
            raise NotServedError(
                f"a token is that of one robot, and this observation is of {count}; serve "
                "simulations by kairos doors without --tokens"
            )
        clients.check_room(count - len(self._robots))
        while len(self._robots) < count:
            end_s = time.monotonic() + REJOIN_S
            while self._named in clients.here and time.monotonic() < end_s:
                await asyncio.sleep(LOOK_S)
            client = Client(self._named or clients.unused_name(), self._map, self._peer)
            robot = Exchange(clients, client)
            clients.join(client, robot.take)
            clients.topics.join(client)
            self._robots.append(robot)
        return self._robots[:count]


def _first_failure(robots: Sequence[Exchange], outcomes: Sequence[Any]) -> BaseException:
    """Ends the rounds of those robots that have got a chunk, too: their client gets none."""
    failures = {}
    for robot, outcome in zip(robots, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            failures[robot.client.robot] = outcome
        else:
            robot.client.failed("another robot of the same request got no chunk")
    name, first = next(iter(failures.items()))
    if len(robots) > 1 and isinstance(first, KairosError):
        return type(first)(f"robot {name}: {first}")
    return first


def _error(text: str) -> dict[str, Any]:
    return {"error": printable(text, 900)}
