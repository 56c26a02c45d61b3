"""What a worker does all day: take a batch, infer it, answer it. A pool does it several times. And
what it has done lately, as a line in its log."""

import logging
import time
from collections.abc import Callable, Sequence

from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.seam import EngineLostError
from kairos_ros.engine.worker.link import Job, WorkerLink
from kairos_ros.transport.messages import BatchResult, InferOutcome, InferRequest, result_message

log = logging.getLogger(__name__)

Infer = Callable[[str, Sequence[InferRequest]], list[InferOutcome]]
"""As `Engine.infer`, of the policy of that name in the registry."""


class WorkReport:
    """Logs batches, requests, clients and the share of time computed, every `every_s` seconds in
    which there was something to do; 0: never. `who` tells several apart."""

    def __init__(self, every_s: float, who: str = "") -> None:
        self._every_s = every_s
        self._who = f"{who} " if who else ""
        self.batches = 0
        """Done since it was made."""
        self._since = time.monotonic()
        self._batches = self._requests = self._dropped = 0
        self._compute_s = 0.0
        self._clients: set[bytes] = set()

    def took(self, job: Job, compute_s: float) -> None:
        """A batch that is done."""
        self.batches += 1
        self._batches += 1
        self._requests += len(job.requests)
        self._compute_s += compute_s
        self._clients.add(job.client)
        self._due()

    def dropped(self, job: Job) -> None:
        """A batch that was not computed because its client left."""
        self._dropped += 1
        self._clients.add(job.client)
        self._due()

    def last(self) -> None:
        """Logs what there is and begins anew."""
        seconds = time.monotonic() - self._since
        if self._every_s and self._clients:
            log.info(
                "metrics: %sbatches=%d requests=%d dropped=%d clients=%d requests_per_s=%.1f "
                "load=%.2f mean_batch_s=%.4f over_s=%.1f",
                self._who,
                self._batches,
                self._requests,
                self._dropped,
                len(self._clients),
                self._requests / seconds,
                self._compute_s / seconds,
                self._compute_s / max(1, self._batches),
                seconds,
            )
        self._since = time.monotonic()
        self._batches = self._requests = self._dropped = 0
        self._compute_s = 0.0
        self._clients.clear()

    def _due(self) -> None:
        if self._every_s and time.monotonic() - self._since >= self._every_s:
            self.last()


def work(infer: Infer, link: WorkerLink, report: WorkReport) -> None:
    """Answers batches one after the other until the worker stops.

    Those of clients that left are not computed. Raises EngineLostError once the batch that was lost
    with the engine is answered.
    """
    while (job := link.next_job()) is not None:
        if link.clients.left(job.client):
            link.refuse(job, RefusalCode.ENGINE_DOWN, "your side was silent or gone")
            report.dropped(job)
            continue
        link.begin(job)
        start = time.monotonic()
        try:
            outcomes = infer(job.policy, job.requests)
        except EngineLostError as error:
            link.refuse(job, RefusalCode.ENGINE_FAILED, str(error))
            raise
        compute_s = time.monotonic() - start
        link.finish(job, result_message(BatchResult(job.batch, compute_s, tuple(outcomes))))
        report.took(job, compute_s)
