"""The servers behind a gateway: which are up, what they serve, which get no calls for a while."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from kairos_ros.core.calls.call import NEVER
from kairos_ros.core.calls.dispatch import Instance
from kairos_ros.gateway.backend import Backend, BackendError, completion, whole
from kairos_ros.gateway.chat import Chat, Said

log = logging.getLogger(__name__)

PROBED_EVERY_S, FIRST_PROBE_S, LAST_PROBE_S = 5.0, 0.5, 30.0
"""Between two probes of a server that is well; after its first failure, and after many in a row."""
MOST_DOUBLINGS = 10
DOUBTED_EVERY_S = 1.0
"""A server that has just answered a call of the gateway's own is not asked for another one."""
PROBE_CALL_S = 5.0
"""A server that failed and does not answer a call of one token in this time has failed again."""


MOST_NAMED = 20
"""Models in one message."""


@dataclass(slots=True)
class Server:
    """A backend, and how it is."""

    backend: Backend
    instance: Instance
    """The same, as the queue sees it."""
    up: bool = False
    """It lists its models when it is asked to."""
    trouble: str = ""
    """What went wrong last; empty again once it has answered a call."""
    failures: int = 0
    """1 and one more for each failed probe in a row; 0: it answers."""
    failed: int = 0
    """In all."""
    reported: dict[str, str] = field(default_factory=dict)
    """Model as it is asked for -> what the server called it in its first answer."""
    doubted: bool = False
    """It said that it failed at a call: the call may be to blame, or the server."""
    proved_ns: int = 0
    """When it last answered a call of the gateway's own."""
    probe_now: asyncio.Event = field(default_factory=asyncio.Event)


class Servers:
    """Probes the servers as long as the context lasts. changed: called when one may serve more, or
    fewer, models or calls than before."""

    def __init__(
        self,
        backends: Sequence[Backend],
        places: int,
        memory_tokens: int,
        changed: Callable[[], None],
    ) -> None:
        self.by_name = {
            one.name: Server(
                one,
                Instance(
                    one.name, frozenset(), min(places, one.most_places or places), memory_tokens
                ),
            )
            for one in backends
        }
        self._changed = changed
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Servers":
        await asyncio.gather(*(self._probe(one) for one in self.by_name.values()))
        self._tasks = [asyncio.create_task(self._probe_on(one)) for one in self.by_name.values()]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(one.backend.close() for one in self.by_name.values()))

    @property
    def instances(self) -> dict[str, Instance]:
        return {name: one.instance for name, one in self.by_name.items()}

    @property
    def models(self) -> list[str]:
        """What those serve that are up."""
        up = [one.instance.models for one in self.by_name.values() if one.up]
        return sorted(frozenset[str]().union(*up))

    def lacks(self, model: str) -> str:
        """Why nobody answers calls of a model; "": somebody does, or soon will again."""
        if self.others(model, ()):
            return ""
        served = self.models
        down = [f"{name}: {one.trouble}" for name, one in self.by_name.items() if not one.up]
        named = [*served[:MOST_NAMED], *(["..."] if len(served) > MOST_NAMED else [])]
        there_are = f"there are {', '.join(named)}" if named else "no server is up"
        return f"no server has model {model!r}; " + "; ".join([there_are, *down])

    def might_have(self, model: str) -> bool:
        """A server that is down served the model, or has never said what it serves."""
        down = [one.instance.models for one in self.by_name.values() if not one.up]
        return any(model in models or not models for models in down)

    def others(self, model: str, not_at: Collection[str]) -> bool:
        """Whether another server than those is up and has a model."""
        return any(
            one.up and model in one.instance.models and name not in not_at
            for name, one in self.by_name.items()
        )

    def doubt(self, name: str, trouble: str) -> None:
        """A server said that it failed at a call. It goes on: a call that no server can answer must
        not take them from all others. It is asked for an answer at once, and stops if that fails.
        """
        server = self.by_name[name]
        server.trouble = trouble
        server.failed += 1
        if time.monotonic_ns() - server.proved_ns > DOUBTED_EVERY_S * 1e9:
            server.doubted = True
            server.probe_now.set()

    def failed(self, name: str, trouble: str, pause_s: float = 0.0) -> None:
        """A call failed there. pause_s: it asked to be left alone for so long; 0: it gets no calls
        until it has answered one of the gateway's own."""
        server = self.by_name[name]
        server.trouble = trouble
        server.failed += 1
        if pause_s:
            pause_s = min(pause_s, LAST_PROBE_S)
            until_ns = time.monotonic_ns() + round(pause_s * 1e9)
            server.instance.suspended_until_ns = max(server.instance.suspended_until_ns, until_ns)
            asyncio.get_running_loop().call_later(pause_s + 0.001, self._changed)
            return
        if not server.failures:  # its other calls fail with it, which says nothing new
            log.warning("%s gets no calls until it has answered a probe: %s", name, trouble)
        server.failures = max(1, server.failures)
        server.instance.suspended_until_ns = NEVER
        server.probe_now.set()

    def answered(self, name: str, asked: str, said: Said) -> None:
        """A call was answered there. Raises BackendError if another model did."""
        server = self.by_name[name]
        first = server.reported.setdefault(asked, said.model)
        if said.model != first and said.model not in server.instance.models:
            raise BackendError(
                f"{name} answered as {said.model!r:.80} where it was {first!r:.80} before"
            )
        if not server.failures:
            server.trouble = ""

    async def _probe_on(self, server: Server) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBED_EVERY_S):
                    await server.probe_now.wait()
            server.probe_now.clear()
            while server.failures:
                await asyncio.sleep(pause_s(server.failures))
                await self._probe(server)
            await self._probe(server)

    async def _probe(self, server: Server) -> None:
        """Whether it lists its models, and, if it has failed or is doubted, answers a call."""
        name, instance = server.backend.name, server.instance
        try:
            models = await self._models(server)
            if (server.failures or server.doubted) and models:
                await self._call(server.backend, sorted(models)[0])
                server.proved_ns = time.monotonic_ns()
        except (BackendError, TimeoutError) as error:
            trouble = str(error) or f"no answer to a probe in {PROBE_CALL_S:g} s"
            if not server.failures:
                log.warning("%s is down: %s", name, trouble)
            server.up = False
            server.trouble = trouble
            server.failures += 1
            server.doubted = False
            server.instance.suspended_until_ns = NEVER
            self._changed()
            return
        server.doubted = False
        if not server.up or server.failures:
            log.info("%s is up and serves %s", name, ", ".join(sorted(models)) or "nothing")
            server.up = True
            server.failures = 0
            instance.suspended_until_ns = 0
        elif models != instance.models:
            log.warning("%s serves other models now: %s", name, ", ".join(sorted(models)))
        if models != instance.models:
            instance.models = models
            server.reported = {}
        self._changed()

    async def _models(self, server: Server) -> frozenset[str]:
        """Asks a server that was well twice: this process may have been late itself. Raises
        BackendError."""
        try:
            return await server.backend.models()
        except BackendError:
            if not server.up or server.failures:
                raise
            return await server.backend.models()

    async def _call(self, backend: Backend, model: str) -> None:
        """Raises BackendError, TimeoutError."""
        body = {"model": model, "messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
        chat = Chat(model, stream=False, prompt_tokens=1, body=json.dumps(body).encode())
        async with asyncio.timeout(PROBE_CALL_S), backend.ask(chat) as reply:
            said = await whole(reply)
        if reply.status >= 500:
            raise BackendError(f"{backend.name} answered {reply.status} to a probe")
        if reply.status == 200:
            self.answered(backend.name, model, completion(said))


def pause_s(failures: int) -> float:
    """Before a server that has failed so often in a row is probed again."""
    doublings = min(failures - 1, MOST_DOUBLINGS)  # a server may be down for days
    return min(FIRST_PROBE_S * 2.0**doublings, LAST_PROBE_S)
