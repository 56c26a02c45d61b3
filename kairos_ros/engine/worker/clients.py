"""Whom a worker works for: their batches, when they last spoke, and who left."""

import threading
from dataclasses import dataclass

ASK_AFTER_S = 1.0
"""A client with batches or questions that says nothing for so long (five heartbeats) is looked
after."""
SILENT_S = 5.0
"""One that says nothing for so long has left, whatever its connection looks like. It took us for
lost before that: after 1.5 s and four round trips (`LinkTiming`)."""


@dataclass(slots=True)
class _Client:
    heard: float
    batches: int = 0
    """That wait or run."""
    questions: int = 0
    """That have no answer yet."""
    left: bool = False


class Clients:
    """By routing id. Callable from any thread; times are those of one monotonic clock, seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[bytes, _Client] = {}

    @property
    def count(self) -> int:
        """Those that were heard lately, or have batches or questions here."""
        with self._lock:
            return sum(not client.left for client in self._clients.values())

    def heard(self, client: bytes, now: float) -> None:
        """It said something, and so is there (again)."""
        with self._lock:
            known = self._clients.setdefault(client, _Client(now))
            known.heard, known.left = now, False

    def took(self, client: bytes) -> None:
        """A batch of a client that was heard."""
        with self._lock:
            self._clients[client].batches += 1

    def answered(self, client: bytes) -> None:
        """One of its batches."""
        with self._lock:
            self._clients[client].batches -= 1

    def asked(self, client: bytes) -> None:
        """A question of a client that was heard."""
        with self._lock:
            self._clients[client].questions += 1

    def told(self, client: bytes) -> None:
        """What came of one of its questions."""
        with self._lock:
            self._clients[client].questions -= 1

    def others(self, client: bytes) -> int:
        """Batches of clients but this one that wait or run."""
        with self._lock:
            return sum(c.batches for key, c in self._clients.items() if key != client)

    def silent(self, now: float) -> list[tuple[bytes, float]]:
        """Clients with batches or questions that said nothing for a while, and for how many
        seconds. Forgets those without."""
        with self._lock:
            quiet = {k: now - c.heard for k, c in self._clients.items() if now - c.heard > SILENT_S}
            for key in quiet:
                if not self._clients[key].batches + self._clients[key].questions:
                    del self._clients[key]
            return [
                (key, now - client.heard)
                for key, client in self._clients.items()
                if client.batches + client.questions
                and not client.left
                and now - client.heard > ASK_AFTER_S
            ]

    def leave(self, client: bytes) -> None:
        """What it has waiting need not be computed any more."""
        with self._lock:
            self._clients[client].left = True

    def left(self, client: bytes) -> bool:
        with self._lock:
            return client in self._clients and self._clients[client].left
