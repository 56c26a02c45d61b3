"""The worker's network side: a thread that answers at once, whatever the engine is busy with."""

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Buffer, Sequence
from dataclasses import dataclass

import zmq

from kairos_ros.core.errors import KairosError, RefusalCode, WireError
from kairos_ros.engine.exit_status import WorkerExit
from kairos_ros.transport.door import Door
from kairos_ros.transport.endpoint import Insecure, is_local
from kairos_ros.transport.engine_wire import (
    BatchError,
    WorkerStatus,
    batch_of,
    description_message,
    error_message,
    read_infer,
    status_message,
)
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.inbox import Inbox
from kairos_ros.transport.key_file import KeyPair
from kairos_ros.transport.key_folder import KeyFolder
from kairos_ros.transport.messages import EngineDescription, InferRequest
from kairos_ros.transport.rate import RateLimit
from kairos_ros.transport.sockets import Behind, bind_router

log = logging.getLogger(__name__)

OUTBOX = "inproc://outbox"
MAX_QUEUED = 64
"""Batches that may wait in a worker; the queue proper is in front of it, where it is ordered."""


@dataclass(frozen=True, slots=True)
class Listening:
    """How a worker that listens on the network is secured."""

    own: KeyPair
    keys: KeyFolder
    """Whose `clients/` may connect."""


@dataclass(frozen=True, slots=True)
class Job:
    """A batch to infer, and whom to answer."""

    client: bytes
    batch: int
    requests: tuple[InferRequest, ...]


class WorkerLink:
    """Owns the ROUTER socket. The engine's thread talks to it through `jobs` and `post` only."""

    def __init__(
        self,
        endpoint: str,
        exit_if_silent_s: float = 0.0,
        security: Listening | Insecure | None = None,
        rate: RateLimit | None = None,
    ) -> None:
        """`rate` limits every client; on the network it has a default."""
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        """Batches in order of arrival; None only wakes the reader."""
        self._endpoint = endpoint
        self._exit_if_silent_s = exit_if_silent_s
        self._security = security
        self._rate = rate or (None if is_local(endpoint) else RateLimit())
        self._door: Door | None = None
        self._context = zmq.Context()
        self._outbox = self._context.socket(zmq.PAIR)
        self._outbox.bind(OUTBOX)
        self._description: EngineDescription | None = None
        self._state, self._stage = "loading", "starting"
        self._busy: tuple[int | None, float] = (None, time.monotonic())
        self._told_refusal = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="worker-link", daemon=True)

    def start(self) -> None:
        """Binds the endpoint; raises zmq.ZMQError when that is impossible, or ConfigError."""
        security = None if is_local(self._endpoint) else self._security
        if isinstance(security, Listening):
            self._door = Door(self._context, security.keys)
            security = Behind(security.own, self._door)
        try:
            self._router = bind_router(self._context, self._endpoint, security=security)
        except (KairosError, zmq.ZMQError):
            if self._door is not None:
                self._door.close()
            raise
        self._inbox = Inbox(self._router, self._door, self._rate)
        self._thread.start()

    def loading(self, stage: str) -> None:
        log.info("loading: %s", stage)
        self._stage = stage
        self._busy = (None, time.monotonic())

    def ready(self, description: EngineDescription) -> None:
        self._description = description
        self._state, self._stage = "ready", ""

    def refused(self, reason: str, wait_s: float) -> None:
        """Tell clients why there is no engine; waits until one has heard it, or `wait_s`."""
        self._state, self._stage = "refused", reason
        self._told_refusal.wait(wait_s)

    def stop(self) -> None:
        """Accept no more batches and wake the engine's thread; callable from a signal handler."""
        self._state = "stopping"
        self.jobs.put(None)

    @property
    def stopping(self) -> bool:
        return self._state == "stopping"

    def busy(self, batch: int | None) -> None:
        self._busy = (batch, time.monotonic())

    def post(self, client: bytes, message: Message) -> None:
        self._outbox.send_multipart([client, *encode(message)])

    def close(self) -> None:
        """Sends what was posted, then closes."""
        self._outbox.send(b"")
        self._thread.join()
        self._outbox.close(linger=0)
        self._router.close(linger=1000)
        if self._door is not None:
            self._door.close()
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
        heard = time.monotonic()
        while True:
            ready = dict(poller.poll(1000))
            if inbox in ready:
                client, *frames = inbox.recv_multipart()
                if not frames:
                    inbox.close(linger=0)
                    return
                self._send(client, frames)
            if self._router in ready:
                heard = time.monotonic()
                with contextlib.suppress(zmq.Again):
                    client, *frames = self._inbox.receive()
                    answer = self._answer(client, frames)
                    if answer is not None:
                        self._send(client, encode(answer))
            elif 0 < self._exit_if_silent_s < time.monotonic() - heard:
                log.error("no client for %.0f s: exiting", self._exit_if_silent_s)
                os._exit(WorkerExit.SILENCE)

    def _send(self, client: bytes, frames: Sequence[Buffer]) -> None:
        try:
            self._router.send_multipart([client, *frames], zmq.NOBLOCK)
        except zmq.Again:
            log.warning("a client does not read its answers: one is dropped")

    def _answer(self, client: bytes, frames: Sequence[Buffer]) -> Message | None:
        batch = None
        try:
            message = decode(frames)
            batch = batch_of(message)
            match message.kind:
                case "ping":
                    return self._status()
                case "hello":
                    described = self._description
                    return description_message(described) if described else self._status()
                case "infer":
                    return self._accept(Job(client, *read_infer(message)))
                case kind:
                    raise WireError(f"unknown message {kind!r:.40}; known are hello, ping, infer")
        except WireError as error:
            log.warning("refused a message: %s", error)
            return error_message(BatchError(batch, RefusalCode.MALFORMED, str(error)))

    def _status(self) -> Message:
        batch, since = self._busy
        if self._state == "refused":
            self._told_refusal.set()
        busy_s = time.monotonic() - since
        return status_message(WorkerStatus(self._state, self._stage, batch, busy_s))

    def _accept(self, job: Job) -> Message | None:
        """Queues the batch (its answer comes later), or says why not."""
        if self._description is None or self._state != "ready":
            code, reason = RefusalCode.ENGINE_DOWN, f"the engine is {self._state}"
        elif not 1 <= len(job.requests) <= self._description.max_batch:
            most = self._description.max_batch
            code = RefusalCode.MALFORMED
            reason = f"a batch of {len(job.requests)} requests; this engine takes 1 to {most}"
        elif self.jobs.qsize() >= MAX_QUEUED:
            code, reason = RefusalCode.OVERLOADED, f"{MAX_QUEUED} batches wait already"
        else:
            self.jobs.put(job)
            return None
        return error_message(BatchError(job.batch, code, reason))
