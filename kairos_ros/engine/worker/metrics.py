"""A worker in Prometheus' words, over HTTP on its own host."""

import logging
import sys
from collections.abc import Iterator, Mapping

from prometheus_client import ProcessCollector, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.worker.link import WorkerLink
from kairos_ros.telemetry.exposition import counter, gauge

log = logging.getLogger(__name__)


def serve_metrics(link: WorkerLink, host: str, port: int) -> None:
    """Serves them from threads of its own until the process ends. port: 0 for any free one.

    Raises ConfigError where the address cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(WorkerCollector(link))
    ProcessCollector(registry=registry)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"--metrics {host}:{port}: {error.strerror}; choose another") from error
    log.info("metrics at http://%s:%d/metrics", host, server.server_port)


class WorkerCollector(Collector):
    """What a worker does, at every scrape."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        link, totals = self._link, self._link.totals
        yield gauge("worker_state", "1 for the state that it is in", ("state",),
                    [((link.state,), 1)])  # fmt: skip
        yield gauge("worker_clients", "Serving nodes that were heard lately", (),
                    [((), link.clients.count)])  # fmt: skip
        yield gauge("worker_replicas", "Batches that it computes at once", (),
                    [((), link.replicas)])  # fmt: skip
        yield gauge("worker_waiting_batches", "Batches that wait", (), [((), link.waiting)])
        yield gauge("worker_computing_batches", "Batches that are prepared or computed", (),
                    [((), link.computing)])  # fmt: skip
        yield counter("worker_batches", "Computed", ("policy",), _rows(totals.batches, link))
        yield counter("worker_requests", "Computed", ("policy",), _rows(totals.requests, link))
        yield counter("worker_compute_seconds", "In which batches were computed", ("policy",),
                      _rows(totals.compute_s, link))  # fmt: skip
        yield counter("worker_refused", "Batches and messages that were refused", ("code",),
                      [((code,), n) for code, n in totals.refusals.items()])  # fmt: skip
        yield gauge("worker_gpu_memory_bytes", "Of this process: used by tensors, and reserved",
                    ("device", "kind"), _gpu_memory())  # fmt: skip


def _rows(done: Mapping[str, float], link: WorkerLink) -> Iterator[tuple[tuple[str, ...], float]]:
    """Those of policies that were not asked for yet, too: a worker that is idle shows as idle."""
    for name in sorted(done.keys() | set(link.served)):
        yield (name,), done.get(name, 0)


def _gpu_memory() -> Iterator[tuple[tuple[str, ...], float]]:
    """Of the GPUs that this process has memory of; none where torch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for number in range(torch.cuda.device_count()):
        if reserved := torch.cuda.memory_reserved(number):
            yield (f"cuda:{number}", "reserved"), reserved
            yield (f"cuda:{number}", "allocated"), torch.cuda.memory_allocated(number)
