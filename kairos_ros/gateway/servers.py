"""The servers behind a gateway: which are up, what they serve, which get no calls for a while."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kairos_ros.core.calls.dispatch import Instance
from kairos_ros.gateway.backend import Backend, BackendError
from kairos_ros.gateway.chat import Said

log = logging.getLogger(__name__)

PROBED_EVERY_S, PROBED_WHEN_DOWN_EVERY_S = 5.0, 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""How long a server that failed gets no calls: doubled with every failure in a row."""


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
    """In a row."""
    failed: int = 0
    """In all."""
    reported: dict[str, str] = field(default_factory=dict)
    """Model as it is asked for -> what the server called it in its first answer."""


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
            one.name: Server(one, Instance(one.name, frozenset(), places, memory_tokens))
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
        """What they serve, those that are down included."""
        return sorted(frozenset[str]().union(*(one.models for one in self.instances.values())))

    def failed(self, name: str, trouble: str, pause_s: float = 0.0) -> None:
        """A call failed there: it gets none for a while. pause_s: as it asked for, else longer with
        every failure in a row."""
        server = self.by_name[name]
        server.trouble = trouble
        server.failed += 1
        pause_s = min(pause_s or FIRST_PAUSE_S * 2.0**server.failures, LONGEST_PAUSE_S)
        server.failures += 1
        log.warning("%s gets no calls for %.1f s: %s", name, pause_s, trouble)
        until_ns = time.monotonic_ns() + round(pause_s * 1e9)
        server.instance.suspended_until_ns = max(server.instance.suspended_until_ns, until_ns)
        asyncio.get_running_loop().call_later(pause_s + 0.001, self._changed)

    def answered(self, name: str, asked: str, said: Said) -> str:
        """A call was answered there. Returns what is wrong with the model that answered, or ""."""
        server = self.by_name[name]
        first = server.reported.setdefault(asked, said.model)
        if said.model != first and said.model not in server.instance.models:
            return f"{name} answered as {said.model!r:.80} where it was {first!r:.80} before"
        server.failures = 0
        server.trouble = ""
        return ""

    async def _probe_on(self, server: Server) -> None:
        while True:
            await asyncio.sleep(PROBED_EVERY_S if server.up else PROBED_WHEN_DOWN_EVERY_S)
            await self._probe(server)

    async def _probe(self, server: Server) -> None:
        name, instance = server.backend.name, server.instance
        try:
            models = await server.backend.models()
        except BackendError as error:
            if server.up or not server.trouble:
                log.warning("%s is down: %s", name, error)
            server.up = False
            server.trouble = str(error)
            # Until it is probed again, and some more: a call must not be what finds out.
            pause_ns = round(3 * PROBED_WHEN_DOWN_EVERY_S * 1e9)
            instance.suspended_until_ns = time.monotonic_ns() + pause_ns
            return
        if not server.up:
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
