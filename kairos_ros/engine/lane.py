"""What a worker does all day: take a batch, infer it, answer it. A pool does it several times."""

import logging
import time
from collections.abc import Callable, Sequence

from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.seam import EngineLostError
from kairos_ros.engine.work_report import WorkReport
from kairos_ros.engine.worker_link import WorkerLink
from kairos_ros.transport.engine_wire import BatchResult, result_message
from kairos_ros.transport.messages import InferOutcome, InferRequest

log = logging.getLogger(__name__)

Infer = Callable[[str, Sequence[InferRequest]], list[InferOutcome]]
"""As `Engine.infer`, of the policy of that name in the registry."""


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
