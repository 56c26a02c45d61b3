"""What a worker has done lately, as a line in its log."""

import logging
import time

from kairos_ros.engine.worker_link import Job

log = logging.getLogger(__name__)


class WorkReport:
    """Logs batches, requests, clients and the share of time computed, every `every_s` seconds in
    which there was something to do; 0: never."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._since = time.monotonic()
        self._batches = self._requests = 0
        self._compute_s = 0.0
        self._clients: set[bytes] = set()

    def took(self, job: Job, compute_s: float) -> None:
        """A batch that is done."""
        self._batches += 1
        self._requests += len(job.requests)
        self._compute_s += compute_s
        self._clients.add(job.client)
        if self._every_s and time.monotonic() - self._since >= self._every_s:
            self.last()

    def last(self) -> None:
        """Logs what there is and begins anew."""
        seconds = time.monotonic() - self._since
        if self._every_s and self._batches:
            log.info(
                "metrics: batches=%d requests=%d clients=%d requests_per_s=%.1f load=%.2f "
                "mean_batch_s=%.4f over_s=%.1f",
                self._batches,
                self._requests,
                len(self._clients),
                self._requests / seconds,
                self._compute_s / seconds,
                self._compute_s / self._batches,
                seconds,
            )
        self._since = time.monotonic()
        self._batches = self._requests = 0
        self._compute_s = 0.0
        self._clients.clear()
