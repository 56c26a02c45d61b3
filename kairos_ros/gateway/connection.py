"""A connection of a client of the gateway."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

ASKS_WITHIN_S = 10.0


class Connection(H11Protocol):
    """Ends when it has not brought the head of a request in ASKS_WITHIN_S: else whoever connects
    and says nothing takes a file of this process for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(ASKS_WITHIN_S, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.close()
