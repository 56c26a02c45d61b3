"""The worker's network side: a thread that answers at once, whatever the engine is busy with."""

import contextlib
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Buffer, Callable, Mapping, Sequence

import zmq

from kairos_ros.core.errors import KairosError, RefusalCode, WireError
from kairos_ros.core.language.load import LanguageLoad
from kairos_ros.engine.worker.clients import SILENT_S, Clients
from kairos_ros.engine.worker.jobs import Job, QuestionJob
from kairos_ros.engine.worker.offered import OfferedPolicies
from kairos_ros.engine.worker.process import WorkerExit
from kairos_ros.engine.worker.totals import WorkTotals
from kairos_ros.transport.endpoint import Insecure, is_local
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.inbox import Inbox
from kairos_ros.transport.language_messages import (
    LanguageFailure,
    LanguageOutcome,
    question_number_of,
    read_ask,
    said_message,
)
from kairos_ros.transport.message_codec import (
    batch_of,
    description_message,
    echo_message,
    error_message,
    ping_of,
    policy_of,
    read_infer,
    received_message,
    status_message,
    wants_receipt,
)
from kairos_ros.transport.messages import BatchError, EngineDescription, WorkerStatus
from kairos_ros.transport.rate import RateLimit
from kairos_ros.transport.sockets import (
    CurveClient,
    CurveServer,
    ListenKeys,
    bind_router,
    connect_router,
)
from kairos_ros.transport.zap_authenticator import ZapAuthenticator

log = logging.getLogger(__name__)

OUTBOX = "inproc://outbox"
LOOK_S = 0.5
"""How often silent clients are looked after."""
MAX_QUEUED = 64
"""Batches that may wait in a worker; the queue proper is in front of it, where it is ordered."""


class WorkerLink:
    """Owns the ROUTER socket. Those who infer, in any number of threads, take batches with
    `next_job`, say when they `begin`, and answer with `finish` or `refuse`."""

    def __init__(
        self,
        endpoint: str,
        exit_if_silent_s: float = 0.0,
        security: ListenKeys | CurveClient | Insecure | None = None,
        rate: RateLimit | None = None,
        *,
        dial: bool = False,
        questions: str = "",
    ) -> None:
        """`rate` limits every client; on the network it has a default. `dial`: connect to the
        endpoint, where a client listens, instead of listening there. `questions`: a local endpoint
        to listen on besides a local one, where judges ask."""
        self.clients = Clients()
        self.totals = WorkTotals()
        self.on_question: Callable[[QuestionJob], None] | None = None
        """Called in the link's thread with each question, which `say` answers later. None: there is
        nobody to answer any."""
        self.language: Mapping[str, LanguageLoad] = {}
        """Of the policies that answer questions."""
        self.replicas = 1
        """Batches that are computed at once, now. 0: none is accepted."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        """Batches in order of arrival; None sends one of those who wait for them away. (This queue
        may be used from a signal handler.)"""
        self._endpoint = endpoint
        self._exit_if_silent_s = exit_if_silent_s
        self._security = security
        self._dial = dial
        self._questions = questions
        self._worker = uuid.uuid4().hex
        self._rate = rate or (None if is_local(endpoint) else RateLimit())
        self._authenticator: ZapAuthenticator | None = None
        self._context = zmq.Context()
        self._outbox = self._context.socket(zmq.PAIR)
        self._outbox.bind(OUTBOX)
        self._offered = OfferedPolicies()
        self._running: dict[Job, float] = {}
        """Batches that are computed -> since when, oldest first."""
        self._lock = threading.Lock()
        """Of `_running` and `_outbox`."""
        self._state, self._stage = "loading", "starting"
        self._stage_since = time.monotonic()
        self._told_refusal = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="worker-link", daemon=True)

    def start(self) -> None:
        """Binds or dials; raises zmq.ZMQError when that is impossible, or ConfigError."""
        security = None if is_local(self._endpoint) else self._security
        try:
            if isinstance(security, ListenKeys):
                self._authenticator = ZapAuthenticator(self._context, security.keys)
                server = CurveServer(security.own, self._authenticator)
                self._router = bind_router(self._context, self._endpoint, security=server)
            elif self._dial:
                self._router = connect_router(self._context, self._endpoint, security=security)
            else:
                assert not isinstance(security, CurveClient)
                self._router = bind_router(self._context, self._endpoint, security=security)
            if self._questions:
                assert is_local(self._endpoint), "the security of one socket holds for both"
                assert is_local(self._questions)
                self._router.bind(self._questions)
        except (KairosError, zmq.ZMQError):
            if self._authenticator is not None:
                self._authenticator.close()
            raise
        self._inbox = Inbox(self._router, self._authenticator, self._rate)
        self._thread.start()

    def loading(self, stage: str) -> None:
        log.info("loading: %s", stage)
        self._stage, self._stage_since = stage, time.monotonic()

    def ready(
        self, descriptions: Mapping[str, EngineDescription], refused: Mapping[str, str]
    ) -> None:
        """By name in the registry. From now on these policies are served; those that are `refused`
        never are, for the reason given."""
        self._offered = OfferedPolicies(descriptions, refused)
        if not self.stopping:
            self._state, self._stage = "ready", ""

    def refused(self, reason: str, wait_s: float) -> None:
        """Tell clients why there is no engine; waits until one has heard it, or `wait_s`."""
        self._state, self._stage = "refused", reason
        self._told_refusal.wait(wait_s)

    def stop(self) -> None:
        """Accept no more batches and wake who waits for one; callable from a signal handler."""
        self._state = "stopping"
        self._jobs.put(None)

    @property
    def stopping(self) -> bool:
        return self._state == "stopping"

    @property
    def state(self) -> str:
        """As in WorkerStatus."""
        return self._state

    @property
    def served(self) -> list[str]:
        """Names of the policies that it serves."""
        return list(self._offered.described)

    @property
    def waiting(self) -> int:
        """Batches that wait."""
        return self._jobs.qsize()

    def next_job(self) -> Job | None:
        """Waits for the batch to infer next; None for who shall leave: the worker stops, or
        `dismiss` was called."""
        job = None if self.stopping else self._jobs.get()
        if job is None and self.stopping:
            self._jobs.put(None)  # for the next one who waits
        return job

    def dismiss(self) -> None:
        """Sends one of those who wait for batches away, as soon as none is waiting."""
        self._jobs.put(None)

    @property
    def computing(self) -> int:
        """Batches that are computed now."""
        return len(self._running)

    def begin(self, job: Job) -> None:
        """The batch is computed from now on, until `finish` or `refuse`."""
        with self._lock:
            self._running[job] = time.monotonic()

    def finish(self, job: Job, message: Message) -> None:
        """Posts the answer to a batch."""
        self.clients.answered(job.client)
        with self._lock:
            self._running.pop(job, None)
            self._outbox.send_multipart([job.client, *encode(message)])

    def refuse(self, job: Job, code: RefusalCode, reason: str) -> None:
        """Answers a batch that is not inferred."""
        self.totals.refused(code)
        self.finish(job, error_message(BatchError(job.batch, code, reason)))

    def say(self, job: QuestionJob, outcome: LanguageOutcome) -> None:
        """Posts what came of a question."""
        self.clients.told(job.client)
        with self._lock:
            message = said_message(job.number, outcome)
            self._outbox.send_multipart([job.client, *encode(message)])

    def refuse_waiting(self, reason: str) -> None:
        """Answers all batches that wait: their clients have them inferred elsewhere."""
        with contextlib.suppress(queue.Empty):
            while True:
                if job := self._jobs.get_nowait():
                    self.refuse(job, RefusalCode.ENGINE_DOWN, reason)
        if self.stopping:
            self._jobs.put(None)  # it may have been taken out above

    def close(self) -> None:
        """Sends what was posted, then closes."""
        self._outbox.send(b"")
        self._thread.join()
        self._outbox.close(linger=0)
        self._router.close(linger=1000)
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()

    def _serve(self) -> None:
        try:
            self._serve_until_closed()
        except Exception:
            log.exception("the worker's link failed; without it the worker is of no use")
            os._exit(WorkerExit.BROKEN)

    def _serve_until_closed(self) -> None:
        inbox = self._context.socket(zmq.PAIR)
        inbox.connect(OUTBOX)
        poller = zmq.Poller()
        poller.register(inbox, zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        heard = looked = time.monotonic()
        while True:
            ready = dict(poller.poll(500))
            if inbox in ready:
                client, *answer = inbox.recv_multipart()
                if not answer:
                    inbox.close(linger=0)
                    return
                self._send(client, answer)
            if self._router in ready:
                heard = time.monotonic()
                with contextlib.suppress(zmq.Again):
                    route, *frames = self._inbox.receive()
                    self._on(bytes(route), frames, heard)
            elif 0 < self._exit_if_silent_s < time.monotonic() - heard:
                log.error("no client for %.0f s: exiting", self._exit_if_silent_s)
                os._exit(WorkerExit.SILENCE)
            if (now := time.monotonic()) - looked > LOOK_S:
                looked = now
                self._look_after_clients(now)

    def _on(self, client: bytes, frames: Sequence[Buffer], now: float) -> None:
        self.clients.heard(client, now)
        if (answer := self._answer(client, frames)) is not None:
            self._send(client, encode(answer))

    def _look_after_clients(self, now: float) -> None:
        """What waits for a client that left is not to be computed. Whether a silent one is still
        connected shows when it is sent something."""
        for client, silent_s in self.clients.silent(now):
            if silent_s > SILENT_S or not self._send(client, encode(self._status(client))):
                log.warning("a client with batches left, or was silent for %.1f s", silent_s)
                self.clients.leave(client)

    def _send(self, client: bytes, frames: Sequence[Buffer]) -> bool:
        """False where the client is not there any more."""
        try:
            self._router.send_multipart([client, *frames], zmq.NOBLOCK)
        except zmq.Again:
            log.warning("a client does not read its answers: one is dropped")
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _answer(self, client: bytes, frames: Sequence[Buffer]) -> Message | None:
        batch = None
        try:
            message = decode(frames)
            batch = batch_of(message)
            match message.kind:
                case "ping":
                    status = self._status(client, policy_of(message), ping_of(message))
                    if (echo := echo_message(message)) is None:
                        return status
                    self._send(client, encode(status))
                    return echo
                case "hello":
                    policy = policy_of(message)
                    if described := self._offered.find(policy):
                        return description_message(described)
                    return self._status(client, policy)
                case "infer":
                    job = Job(client, policy_of(message), *read_infer(message))
                    if wants_receipt(message):
                        self._send(client, encode(received_message(job.batch)))
                    return self._accept(job)
                case "ask":
                    return self._take_question(client, message)
                case kind:
                    known = "hello, ping, infer, ask"
                    raise WireError(f"unknown message {kind!r:.40}; known are {known}")
        except WireError as error:
            log.warning("refused a message: %s", error)
            self.totals.refused(RefusalCode.MALFORMED)
            return error_message(BatchError(batch, RefusalCode.MALFORMED, str(error)))

    def _status(self, client: bytes, policy: str | None = None, ping: int | None = None) -> Message:
        """`policy` is the one that the client asked about, if it did."""
        now = time.monotonic()
        state, stage = self._state, self._stage
        batch, since = None, self._stage_since if state == "loading" else now
        if state == "refused":
            self._told_refusal.set()
        elif state == "ready" and policy is not None and self._offered.find(policy) is None:
            state, stage = "unserved", self._offered.why_not(policy)
        with self._lock:
            for job, began in self._running.items():
                if job.client == client:
                    batch, since = job.batch, began
                    break
        return status_message(
            WorkerStatus(
                state,
                stage,
                batch,
                now - since,
                self._worker,
                self.clients.others(client),
                ping,
                self.replicas,
                self.language.get(policy or ""),
            )
        )

    def _accept(self, job: Job) -> Message | None:
        """Queues the batch (its answer comes later), or says why not."""
        described = self._offered.find(job.policy)
        if self._state != "ready":
            code, reason = RefusalCode.ENGINE_DOWN, f"the engine is {self._state}"
        elif described is None:
            code, reason = RefusalCode.ENGINE_DOWN, self._offered.why_not(job.policy)
        elif not 1 <= len(job.requests) <= described.max_batch:
            code, most = RefusalCode.MALFORMED, described.max_batch
            reason = f"a batch of {len(job.requests)} requests; this engine takes 1 to {most}"
        elif not self.replicas:
            code, reason = RefusalCode.ENGINE_DOWN, "all replicas are being started again"
        elif self._jobs.qsize() >= MAX_QUEUED:
            code, reason = RefusalCode.OVERLOADED, f"{MAX_QUEUED} batches wait already"
        else:
            self.clients.took(job.client)
            self._jobs.put(job)
            return None
        self.totals.refused(code)
        return error_message(BatchError(job.batch, code, reason))

    def _take_question(self, client: bytes, message: Message) -> Message | None:
        """Passes the question on (its answer comes later), or says why not. Raises WireError for
        one without a number."""
        try:
            job = QuestionJob(client, policy_of(message), *read_ask(message))
        except WireError as error:
            if (number := question_number_of(message)) is None:
                raise
            log.warning("refused a question: %s", error)
            return said_message(number, LanguageFailure(RefusalCode.MALFORMED, str(error)))
        if self._state != "ready":
            reason = f"the engine is {self._state}"
        elif self._offered.find(job.policy) is None:
            reason = self._offered.why_not(job.policy)
        elif self.on_question is None:
            reason = "this worker answers no questions"
        else:
            self.clients.asked(client)
            self.on_question(job)
            return None
        return said_message(job.number, LanguageFailure(RefusalCode.ENGINE_DOWN, reason))
