"""Clients of other policy servers in Prometheus' words."""

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from kairos_ros.doors.clients import Clients
from kairos_ros.telemetry.exposition import counter, gauge, page

CONNECTIONS = (
    "connected",
    "disconnected",
    "refused_clients",
    "refused_connections",
    "idle_clients",
    "slow_readers",
    "too_fast",
    "gone_while_waiting",
)
"""What is counted of connections; the rest is counted of the clients of a dialect."""


def metrics(clients: Clients, sockets: int, dialects: Sequence[str]) -> str:
    """The page that Prometheus scrapes.

    sockets: connections that are open, those included that have not said anything. dialects: that
    are served.
    """
    return page(_families(clients, sockets, dialects)).decode()


def _families(clients: Clients, sockets: int, dialects: Sequence[str]) -> Iterator[Metric]:
    here = Counter(client.dialect for client in clients.here.values())
    yield gauge("doors_clients", "Connected now", ("dialect",),
                [((one,), here[one]) for one in dialects])  # fmt: skip
    yield gauge("doors_clients_limit", "Clients at a time", (), [((), clients.limits.clients)])
    yield gauge("doors_connections", "Open connections, those included that say nothing", (),
                [((), sockets)])  # fmt: skip
    yield counter("doors_connection_events", "What became of connections", ("event",),
                  [((event,), clients.counters[event]) for event in CONNECTIONS])  # fmt: skip
    totals = clients.by_dialect()
    yield counter(
        "doors_events",
        "Requests, answers, refusals by code and faults of all clients so far",
        ("dialect", "event"),
        [
            ((dialect, event), count)
            for dialect in dialects
            for event, count in totals.get(dialect, Counter()).items()
        ],
    )
