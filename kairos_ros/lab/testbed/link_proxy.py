"""A TCP proxy that delays, rate-limits and cuts, where packets cannot be touched (no namespaces).

It stands in for a long link within one host: bytes arrive late and in order. It cannot lose single
packets, and TCP's slow start happens on either side of it at loopback speed.
`python -m kairos_ros.lab.testbed.link_proxy --help`.
"""

import argparse
import asyncio
import contextlib
import json
import sys
from collections import deque
from dataclasses import dataclass

CHUNK = 65_536
MAX_WAITING_BYTES = 16_000_000
"""Under way in one direction of one connection; more is not read, so that the sender feels it."""

LINK_PROXY = "kairos_ros.lab.testbed.link_proxy"
"""This module as a program: `python -m`."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a link does, in both directions."""

    delay_s: float = 0.0
    """One way: the round trip is twice this."""
    jitter_s: float = 0.0
    """Up to so much more, at random; packets stay in order. Not by the proxy."""
    loss: float = 0.0
    """Share of packets that are dropped, 0..1. Not by the proxy."""
    bits_per_s: float = 0.0
    """0: no limit."""
    cut: str = ""
    """`both`: nothing gets through. `out`, `back`: half open, only that direction is cut, counted
    from the side that dials."""


class LinkProxy:
    """Listens on one port of loopback and connects each client to another."""

    def __init__(self, target: tuple[str, int], conditions: Conditions) -> None:
        self._target = target
        self.conditions = conditions
        self._connections: set[asyncio.StreamWriter] = set()

    async def listen(self, port: int) -> int:
        """Returns the port, which is a free one where `port` is 0."""
        self._server = await asyncio.start_server(self._client, "127.0.0.1", port)
        port_given: int = self._server.sockets[0].getsockname()[1]
        return port_given

    def redirect(self, port: int) -> None:
        """Connects clients to another port of the same host from now on; those who are here lose
        their connection."""
        self._target = self._target[0], port
        for writer in self._connections:
            writer.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._while_cut("out")
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        both = {writer, far_writer}
        self._connections |= both
        # Cancelled when the proxy ends: asyncio would print that as an error.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(
                _Way(self, "out").carry(reader, far_writer),
                _Way(self, "back").carry(far_reader, writer),
            )
        self._connections -= both

    async def _while_cut(self, direction: str) -> None:
        while self.conditions.cut in ("both", direction):
            await asyncio.sleep(0.01)


class _Way:
    """One direction of one connection."""

    def __init__(self, proxy: LinkProxy, direction: str) -> None:
        self._proxy = proxy
        self._direction = direction
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._free_at = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either side ends."""
        taking = asyncio.create_task(self._take(reader))
        with contextlib.suppress(OSError):
            await self._deliver(writer)
        taking.cancel()
        writer.close()

    async def _take(self, reader: asyncio.StreamReader) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            while self._bytes > MAX_WAITING_BYTES:
                await asyncio.sleep(0.001)
            try:
                data = await reader.read(CHUNK)
            except OSError:
                data = b""
            conditions = self._proxy.conditions
            begin = max(clock(), self._free_at)
            if conditions.bits_per_s:
                begin = self._free_at = begin + len(data) * 8 / conditions.bits_per_s
            self._waiting.append((begin + conditions.delay_s, data))
            self._bytes += len(data)
            self._changed.set()
            if not data:
                return

    async def _deliver(self, writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            while not self._waiting:
                self._changed.clear()
                await self._changed.wait()
            at, data = self._waiting.popleft()
            await asyncio.sleep(max(0.0, at - clock()))
            await self._proxy._while_cut(self._direction)
            self._bytes -= len(data)
            if not data:
                return
            writer.write(data)
            await writer.drain()


async def _run(args: argparse.Namespace) -> None:
    host, _, port = args.to.rpartition(":")
    conditions = Conditions(delay_s=args.delay_ms / 1e3, bits_per_s=args.mbps * 1e6)
    proxy = LinkProxy((host, int(port)), conditions)
    print(f"ready {await proxy.listen(args.port)}", flush=True)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        wanted = json.loads(line)
        if port := wanted.pop("to", 0):
            proxy.redirect(port)
        proxy.conditions = Conditions(**wanted)
        print("set", flush=True)


def main() -> None:
    """Runs until standard input ends; each line of it is a JSON object with new `Conditions`, and
    with `to` where clients are connected to another port."""
    parser = argparse.ArgumentParser(prog="link_proxy", description=main.__doc__)
    parser.add_argument("--to", required=True, help="HOST:PORT to connect clients to")
    parser.add_argument("--port", type=int, default=0, help="port of 127.0.0.1; 0: a free one")
    parser.add_argument("--delay-ms", type=float, default=50.0, help="one way, milliseconds")
    parser.add_argument("--mbps", type=float, default=0.0, help="Mbit/s; 0: no limit")
    args = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(args))


if __name__ == "__main__":
    main()
