"""The batches of a worker: prepared, computed, answered, and counted in a line of its log."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.interface import EngineLostError, PreparedBatch
from kairos_ros.engine.worker.jobs import Job, QuestionJob
from kairos_ros.engine.worker.link import WorkerLink
from kairos_ros.engine.worker.questions import Questions
from kairos_ros.transport.language_messages import LanguageFailure
from kairos_ros.transport.message_codec import result_message
from kairos_ros.transport.messages import BatchResult, InferOutcome, InferRequest

log = logging.getLogger(__name__)

Infer = Callable[[str, Sequence[InferRequest]], list[InferOutcome]]
"""As `Engine.infer`, of the policy of that name in the registry."""
Prepare = Callable[[str, Sequence[InferRequest]], PreparedBatch]
"""As `Engine.prepare`, of the policy of that name in the registry."""


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A batch that only needs to be computed."""

    job: Job
    infer: PreparedBatch
    prepare_s: float


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


def one_by_one(infer: Infer, link: WorkerLink) -> Iterator[PreparedJob]:
    """The batches of a worker, each taken when the one before it is done."""
    while (job := link.next_job()) is not None:
        yield PreparedJob(job, partial(infer, job.policy, job.requests), 0.0)


class PreparedAhead:
    """The batches of a worker, one of them prepared while the one before it is computed. Questions
    are answered in between.

    A context: what was prepared but not taken when it is left is answered as not served.
    """

    def __init__(self, prepare: Prepare, link: WorkerLink, questions: Questions) -> None:
        self._prepare, self._link, self._questions = prepare, link, questions
        self._prepared: queue.SimpleQueue[PreparedJob | QuestionJob | Exception | None] = (
            queue.SimpleQueue()
        )
        """None comes last."""
        self._room = threading.Semaphore(1)
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="prepare", daemon=True)

    def __enter__(self) -> Iterator[PreparedJob]:
        self._link.on_question = self._prepared.put
        self._thread.start()
        return self._jobs()

    def __exit__(self, *_: object) -> None:
        self._leaving = True
        self._link.on_question = None
        self._questions.refuse("the engine stops")
        self._room.release()
        self._link.dismiss()
        self._thread.join()
        with suppress(queue.Empty):
            while True:
                left = self._prepared.get_nowait()
                if isinstance(left, PreparedJob):
                    self._refuse(left.job)
                elif isinstance(left, QuestionJob):
                    why = "the engine stops"
                    self._link.say(left, LanguageFailure(RefusalCode.ENGINE_DOWN, why))

    def _jobs(self) -> Iterator[PreparedJob]:
        while (prepared := self._next()) is not None:
            self._room.release()
            if self._link.stopping:
                self._refuse(prepared.job)
            else:
                yield prepared

    def _next(self) -> PreparedJob | None:
        """Waits for the next batch, and answers questions meanwhile. Raises what preparing it
        raised, and EngineLostError."""
        while True:
            try:
                found = self._prepared.get(timeout=self._questions.go_on())
            except queue.Empty:
                continue
            if isinstance(found, Exception):
                raise found
            if not isinstance(found, QuestionJob):
                return found
            self._questions.ask(found)

    def _refuse(self, job: Job) -> None:
        self._link.refuse(job, RefusalCode.ENGINE_DOWN, "the engine stops")

    def _run(self) -> None:
        try:
            while not self._leaving:
                self._room.acquire()
                job = self._link.next_job()
                if job is None:
                    break
                if self._leaving:
                    self._refuse(job)
                    break
                self._link.begin(job)  # a picture that takes for ever is noticed as a batch is
                start = time.monotonic()
                infer = self._prepare(job.policy, job.requests)
                self._prepared.put(PreparedJob(job, infer, time.monotonic() - start))
        except Exception as error:  # the worker ends of it, as of any in its main thread
            self._prepared.put(error)
        self._prepared.put(None)


def work(jobs: Iterable[PreparedJob], link: WorkerLink, report: WorkReport) -> None:
    """Answers batches one after the other until there are no more.

    Those of clients that left are not computed. Raises EngineLostError once the batch that was lost
    with the engine is answered.
    """
    for prepared in jobs:
        job = prepared.job
        if link.clients.left(job.client):
            link.refuse(job, RefusalCode.ENGINE_DOWN, "your side was silent or gone")
            report.dropped(job)
            continue
        link.begin(job)
        start = time.monotonic()
        try:
            outcomes = prepared.infer()
        except EngineLostError as error:
            link.refuse(job, RefusalCode.ENGINE_FAILED, str(error))
            raise
        compute_s = time.monotonic() - start
        result = BatchResult(job.batch, compute_s, tuple(outcomes), prepared.prepare_s)
        link.finish(job, result_message(result))
        report.took(job, compute_s)
        link.totals.took(job.policy, len(job.requests), compute_s)
