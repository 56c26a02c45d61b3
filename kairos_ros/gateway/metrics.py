"""The gateway in Prometheus' words."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import Metric

from kairos_ros.core.calls.queue import WAIT_BOUNDS_S
from kairos_ros.gateway.gateway import Gateway
from kairos_ros.telemetry.exposition import counter, gauge, histogram, page


def metrics(gateway: Gateway) -> bytes:
    """The page that Prometheus scrapes, of the gateway as it is now."""
    return page([*_calls(gateway), *_servers(gateway)])


def _calls(gateway: Gateway) -> Iterator[Metric]:
    now_ns, queue = time.monotonic_ns(), gateway.queue
    served = sorted(queue.served.items())
    waits_ns: dict[str, list[int]] = defaultdict(list)
    for call in queue.waiting:
        component = queue.learned.workflows.known(call.caller.component)
        waits_ns[component].append(now_ns - call.arrived_ns)
    running = Counter(
        queue.learned.workflows.known(run.call.caller.component) for _, run in queue.running
    )
    components = sorted(waits_ns.keys() | running.keys() | queue.served.keys())
    yield gauge("gateway_waiting_calls", "Calls in the queue", ("component",),
                [((one,), len(waits_ns[one])) for one in components])  # fmt: skip
    yield gauge("gateway_running_calls", "Calls that servers have", ("component",),
                [((one,), running[one]) for one in components])  # fmt: skip
    yield gauge("gateway_oldest_wait_seconds", "Of the oldest call in the queue; 0: none waits",
                ("component",),
                [((one,), max(waits_ns[one], default=0) / 1e9) for one in components])  # fmt: skip
    yield gauge("gateway_held", "1 while calls wait, and why they do", ("reason",),
                [((queue.held,), 1)] if queue.waiting and queue.held else [])  # fmt: skip
    yield counter(
        "gateway_calls",
        "Calls that have ended: in_time, late or answered without an objective; or unanswered",
        ("component", "outcome"),
        [
            ((name, outcome), count)
            for name, one in served
            for outcome, count in (
                ("in_time", one.in_time),
                ("late", one.late),
                ("no_objective", one.answered - one.in_time - one.late),
                ("unanswered", one.unanswered),
            )
        ],
    )
    yield histogram(
        "gateway_wait_seconds",
        "In the queue, of answered calls",
        ("component",),
        WAIT_BOUNDS_S,
        [((name,), one.waits, one.waited_ns / 1e9) for name, one in served],
    )
    yield counter("gateway_refused_calls", "Without an answer", ("code",),
                  [((code,), count) for code, count in gateway.refused.items()])  # fmt: skip
    yield counter("gateway_choices", "Calls given to a server, by how they stood then",
                  ("server", "standing"), queue.choices.items())  # fmt: skip


def _servers(gateway: Gateway) -> Iterator[Metric]:
    now_ns = time.monotonic_ns()
    servers = [((name,), one) for name, one in gateway.servers.by_name.items()]
    yield gauge("gateway_server_up", "1 while it lists its models and answers", ("server",),
                [(name, one.up and not one.failures) for name, one in servers])  # fmt: skip
    yield gauge("gateway_server_paused", "1 while it gets no calls", ("server",),
                [(name, one.instance.suspended_until_ns > now_ns)
                 for name, one in servers])  # fmt: skip
    yield gauge("gateway_server_places", "Calls that it gets at a time", ("server",),
                [(name, one.instance.places) for name, one in servers])  # fmt: skip
    yield gauge("gateway_server_running_calls", "Calls that it has now", ("server",),
                [(name, len(one.instance.running)) for name, one in servers])  # fmt: skip
    yield counter("gateway_server_failures", "Calls that failed there", ("server",),
                  [(name, one.failed) for name, one in servers])  # fmt: skip
