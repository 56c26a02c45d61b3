"""The questions of a worker: taken to their engines, and answered over the turns that follow."""

import logging
import time
from collections.abc import Mapping

from kairos_ros.core.errors import RefusalCode
from kairos_ros.engine.interface import Engine, QuestionAnswering
from kairos_ros.engine.worker.jobs import QuestionJob
from kairos_ros.engine.worker.link import WorkerLink
from kairos_ros.transport.language_messages import LanguageFailure

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often it is looked whether a question that waits is out of time."""


class Questions:
    """Used from the thread that computes batches."""

    def __init__(self, engines: Mapping[str, Engine], link: WorkerLink) -> None:
        """engines: by name in the worker's registry."""
        self._engines, self._link = engines, link
        self._asked: dict[QuestionJob, QuestionAnswering] = {}
        self._tell()

    def ask(self, job: QuestionJob) -> None:
        """Hands a question to its engine, or says why not."""
        engines = self._engines
        engine = engines[job.policy] if job.policy in engines else next(iter(engines.values()))
        if (answering := engine.answering) is None:
            kind = engine.description.policy_type
            reason = f"policy {kind} answers no questions here: it runs without language_mib"
            self._link.say(job, LanguageFailure(RefusalCode.ENGINE_DOWN, reason))
        elif refused := answering.ask(job, job.question, time.monotonic()):
            self._link.say(job, refused)
        else:
            self._asked[job] = answering
            self._tell()

    def go_on(self) -> float | None:
        """Decodes a turn, and answers what has ended. Returns how long the next batch may be waited
        for before the next turn, in seconds; None: for ever.

        Raises EngineLostError.
        """
        if not self._asked:
            return None
        for job in [job for job in self._asked if self._link.clients.left(job.client)]:
            self._asked.pop(job).withdraw(job)
            reason = "your side was silent or gone"
            self._link.say(job, LanguageFailure(RefusalCode.ENGINE_DOWN, reason))
        answering = set(self._asked.values())
        for one in answering:
            for key, outcome in one.go_on(time.monotonic()):
                assert isinstance(key, QuestionJob)  # only those are asked here
                del self._asked[key]
                self._link.say(key, outcome)
        self._tell()
        if any(one.load.answering for one in answering):
            return 0.0
        return LOOK_S if self._asked else None

    def _tell(self) -> None:
        """In the worker's status."""
        self._link.language = {
            name: engine.answering.load
            for name, engine in self._engines.items()
            if engine.answering
        }

    def refuse(self, reason: str) -> None:
        """Answers all that are left."""
        for job in self._asked:
            self._link.say(job, LanguageFailure(RefusalCode.ENGINE_DOWN, reason))
        self._asked.clear()
