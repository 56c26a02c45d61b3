"""One observation of a client for one chunk: what its client waits for."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from kairos_ros.core.errors import KairosError
from kairos_ros.core.exchange import Actions, Answer, Refusal
from kairos_ros.core.wire_check import printable
from kairos_ros.doors.client import FINAL, Client
from kairos_ros.doors.clients import LOOK_S, Clients
from kairos_ros.doors.observation import Seen, seen_of, sizes_of

LOG = logging.getLogger(__name__)
REPEAT_S, FIRST_REPEAT_S = 1.0, 0.2
"""Silence after which a request is sent again; it doubles. Of a new client it is shorter: the
serving node may not have found its reader yet, so that the first answer gets lost."""
LONGEST_SILENCE_S = 4.0


class NotServedError(KairosError):
    """A client gets no chunk; the reason is for it."""


class Exchange:
    """Of one client that has joined."""

    def __init__(self, clients: Clients, client: Client) -> None:
        self.client = client
        self._clients, self._topics, self._limits = clients, clients.topics, clients.limits
        self._answers: asyncio.Queue[Answer] = asyncio.Queue(maxsize=16)

    def take(self, answer: Answer) -> None:
        """An answer that the client has received."""
        with contextlib.suppress(asyncio.QueueFull):
            self._answers.put_nowait(answer)

    async def chunk(self, message: Mapping[Any, Any], came_ns: int) -> Actions:
        """What the policy answers to one observation.

        Raises WireError for an observation that does not fit the map, NotServedError where no chunk
        comes in time. After either the client may go on with another observation.
        """
        client = self.client
        end_ns = came_ns + round(self._limits.answer_s * 1e9)
        try:
            await self.until_served(end_ns)
            seen = await self._seen(message)
            self._note_unused(seen)
            return await self._exchange(seen, came_ns, end_ns)
        except KairosError as error:
            client.failed(printable(str(error), 300))
            self._topics.tell(client)
            raise

    def replied(self) -> None:
        """The chunk was sent to its client."""
        self.client.replied(time.monotonic_ns())
        self._clients.counters["chunks"] += 1
        self._topics.tell(self.client)

    async def until_served(self, end_ns: int) -> None:
        """Until there is a server, with topics of this client, that it may ask by now. Raises
        NotServedError at this time."""
        client = self.client
        while True:
            now_ns = time.monotonic_ns()
            outcome = client.look(now_ns)
            if outcome:
                raise NotServedError(outcome)
            if client.server is not None:
                if client.misfit:
                    raise NotServedError(client.misfit)
                if self._topics.ready(client) and now_ns >= client.soonest_ns:
                    return
            if now_ns > end_ns:
                waits = f"{self._limits.answer_s:g} s"
                if client.server is None:
                    why = client.binding.why_none(now_ns)
                    raise NotServedError(f"no server for {waits}: {why}")
                raise NotServedError(f"{client.server} has not opened its topics for {waits}")
            await asyncio.sleep(LOOK_S)

    async def _seen(self, message: Mapping[Any, Any]) -> Seen:
        client = self.client
        policy = client.binding.policy
        sizes = sizes_of(policy, client.map.images) if policy else {}
        if not client.map.images:
            return seen_of(message, client.map, sizes)
        loop, encoders = asyncio.get_running_loop(), self._clients.encoders
        return await loop.run_in_executor(encoders, seen_of, message, client.map, sizes)

    def _note_unused(self, seen: Seen) -> None:
        client = self.client
        if seen.unused and not client.counters["unused_keys"]:
            LOG.warning(
                "client %s sends %s, which its observation map does not name",
                client.robot,
                ", ".join(seen.unused[:10]),
            )
        client.counters["unused_keys"] += len(seen.unused)

    async def _exchange(self, seen: Seen, came_ns: int, end_ns: int) -> Actions:
        client, answers = self.client, self._answers
        while not answers.empty():
            answers.get_nowait()
        request = client.begin(seen.prompt, seen.observation, came_ns, time.monotonic_ns())
        self._topics.tell(client)
        silence_s, reason = REPEAT_S if client.counters["chunks"] else FIRST_REPEAT_S, ""
        while True:
            self._topics.send(client, request)
            left_s = (end_ns - time.monotonic_ns()) / 1e9
            try:
                answer = await asyncio.wait_for(answers.get(), min(silence_s, max(left_s, 0.0)))
            except TimeoutError:
                client.counters["silences"] += 1
                LOG.info("client %s asks again after %g s of silence", client.robot, silence_s)
                silence_s = min(2 * silence_s, LONGEST_SILENCE_S)
                answer = None
            wait_s = 0.0
            if answer is not None:
                if isinstance(answer.body, Actions):
                    return answer.body
                if isinstance(answer.body, Refusal):
                    reason, wait_s = answer.body.reason, answer.body.retry_after_ns / 1e9
                    client.counters[f"refused_{answer.body.code.name.lower()}"] += 1
                    if not wait_s or answer.body.code in FINAL:
                        raise NotServedError(f"the server refused the request: {reason}")
            now_ns = time.monotonic_ns()
            if now_ns + wait_s * 1e9 >= end_ns:
                why = f": {reason}" if reason else f"; the server is {client.server}"
                raise NotServedError(f"no chunk within {self._limits.answer_s:g} s{why}")
            if wait_s:
                await asyncio.sleep(wait_s)
            outcome = client.look(time.monotonic_ns())
            if outcome:
                raise NotServedError(outcome)
            request = client.repeat(time.monotonic_ns())


def told_of(answered: Actions) -> dict[str, Any]:
    """How a chunk came about, for the client that gets it."""
    return {
        "horizon": len(answered.actions),
        "chunk_size": answered.chunk_size,
        "horizon_reason": answered.horizon_reason,
        "reason": answered.reason,
        "batch_size": answered.batch_size,
        "tier": answered.tier,
        "engine": answered.engine,
        "policy": answered.policy,
    }
