"""A worker prepares one batch while it computes the one before, and answers every batch."""

import queue
import threading
from types import SimpleNamespace

import pytest

from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.interface import EngineLostError
from kairos_ros.engine.worker.jobs import Job
from kairos_ros.engine.worker.questions import Questions
from kairos_ros.engine.worker.totals import WorkTotals
from kairos_ros.engine.worker.work_loop import PreparedAhead, WorkReport, work


class Link:
    """What the work loop needs of a worker's link."""

    def __init__(self, count):
        self.stopping = False
        self.answered, self.refused, self.begun = [], [], []
        self.clients = SimpleNamespace(left=lambda _: False)
        self.totals = WorkTotals()
        self._jobs = queue.SimpleQueue()
        for batch in range(count):
            self._jobs.put(Job(b"client", "", batch, (batch,)))

    def next_job(self):
        return self._jobs.get()

    def dismiss(self):
        self._jobs.put(None)

    def begin(self, job):
        self.begun.append(job.batch)

    def finish(self, job, message):
        self.answered.append(job.batch)

    def refuse(self, job, code, reason):
        assert code in (RefusalCode.ENGINE_DOWN, RefusalCode.ENGINE_FAILED)
        self.refused.append(job.batch)


def run(link, prepare):
    with PreparedAhead(prepare, link, Questions({}, link)) as jobs:
        work(jobs, link, WorkReport(0.0))


def test_one_batch_is_prepared_while_another_is_computed_and_no_more():
    count = 6
    link = Link(count)
    prepared = [threading.Event() for _ in range(count + 2)]
    too_far = []

    def prepare(policy, requests):
        (batch,) = requests
        prepared[batch].set()

        def infer():
            if batch + 1 < count:
                assert prepared[batch + 1].wait(20.0)
            else:
                link.dismiss()
            too_far.append(prepared[batch + 2].is_set())
            return []

        return infer

    run(link, prepare)
    assert link.answered == list(range(count))
    assert not any(too_far)
    assert link.refused == []


@pytest.mark.parametrize("failed", [EngineLostError("the GPU is gone"), ZeroDivisionError()])
def test_what_was_prepared_for_an_engine_that_is_lost_is_answered(failed):
    link = Link(3)

    def prepare(policy, requests):
        def infer():
            raise failed

        return infer

    with pytest.raises(type(failed)):
        run(link, prepare)
    assert link.answered == []
    lost = [0] if isinstance(failed, EngineLostError) else []
    assert link.refused[: len(lost)] == lost
    assert set(link.refused) >= {1} or 1 not in link.begun


def test_a_worker_told_to_stop_finishes_what_it_computes_and_refuses_the_rest():
    link = Link(3)

    def prepare(policy, requests):
        def infer():
            link.stopping = True
            link.dismiss()
            return []

        return infer

    run(link, prepare)
    assert link.answered == [0]
    assert 1 not in link.answered


def test_what_breaks_while_preparing_ends_the_worker_and_does_not_hang_it():
    link = Link(1)

    def prepare(policy, requests):
        raise MemoryError("a bomb")

    with pytest.raises(MemoryError):
        run(link, prepare)
