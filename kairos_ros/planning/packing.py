"""Robots onto the servers of one model.

Rosa §3.4.3 packs each class by itself and then merges servers that have room. Here the classes are
packed one after the other into the room that is left: the same sharing, without undoing anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Stream:
    """What the robots of one class ask of one component."""

    owner: int
    """Index of the class."""
    robots: int
    rate_hz: float
    """Of each robot."""
    limits_hz: tuple[float, ...]
    """By batching: the most that a server may be asked in all, for this class to keep its
    latencies."""

    @property
    def per_server(self) -> int:
        """Robots that a server of this class alone carries."""
        return math.floor(max(self.limits_hz, default=0.0) / self.rate_hz + ROUNDING)


@dataclass(slots=True)
class Packed:
    """One server: how many robots of which class."""

    robots: dict[int, int] = field(default_factory=dict)
    """Index of the class -> robots."""
    load_hz: float = 0.0
    limits_hz: tuple[float, ...] = ()
    """By batching, those of all classes on it."""

    def room(self, stream: Stream) -> int:
        """Robots of this stream that it can take, too."""
        limit = max(map(min, self.limits_hz, stream.limits_hz))
        return max(0, math.floor((limit - self.load_hz) / stream.rate_hz + ROUNDING))

    def add(self, stream: Stream, robots: int) -> None:
        self.robots[stream.owner] = self.robots.get(stream.owner, 0) + robots
        self.load_hz += robots * stream.rate_hz
        self.limits_hz = tuple(map(min, self.limits_hz or stream.limits_hz, stream.limits_hz))


def isolated(stream: Stream) -> list[Packed] | None:
    """The fewest servers for one class alone: full ones, and one with the rest. None where one
    robot is too much for a server."""
    most = min(stream.per_server, stream.robots)
    if most < 1:
        return None
    servers = []
    for first in range(0, stream.robots, most):
        server = Packed()
        server.add(stream, min(most, stream.robots - first))
        servers.append(server)
    return servers


def pack(streams: Sequence[Stream]) -> list[Packed] | None:
    """Servers that carry all streams; None where one robot alone is too much for a server.

    Class after class, the strictest and hungriest first, fills what those before it left free, and
    has servers of its own for the rest. That never takes more than isolated packing.
    """
    servers: list[Packed] = []
    for stream in sorted(streams, key=lambda one: (max(one.limits_hz), -one.rate_hz)):
        if stream.per_server < 1:
            return None
        left = stream.robots
        for server in servers:
            if robots := min(left, server.room(stream)):
                server.add(stream, robots)
                left -= robots
        if left:
            servers += isolated(replace(stream, robots=left)) or []
    return servers
