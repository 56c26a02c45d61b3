"""Speaks with one engine, for the serving node: heartbeats, batches, and what comes of them.

The worker runs elsewhere, or in a process of this host that a `WorkerSupervisor` starts and kills.
Imports no torch.
"""

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Buffer, Callable, Sequence

import zmq

from kairos_ros.core.errors import KairosError, RefusalCode, WireError
from kairos_ros.engine.client.batch_encoder import BatchEncoder
from kairos_ros.engine.client.connection import PeerState, WorkerConnection
from kairos_ros.engine.client.events import (
    BatchDone,
    BatchFailed,
    EngineDown,
    EngineDraining,
    EngineEvent,
    EngineLoading,
    EngineReady,
    EngineUnreachable,
    LanguageChanged,
    LinkChanged,
)
from kairos_ros.engine.client.link_monitor import LinkMonitor, LinkTiming
from kairos_ros.engine.client.remote_spec import RemoteSpec
from kairos_ros.engine.client.worker_supervisor import WorkerSupervisor
from kairos_ros.transport.frames import Message, encode
from kairos_ros.transport.message_codec import (
    ping_message,
    read_batch,
    read_description,
    read_error,
    read_result,
    read_status,
)
from kairos_ros.transport.messages import EngineDescription, InferRequest, WorkerStatus

log = logging.getLogger(__name__)

LAST_MESSAGES_S = 1.0
"""Why a worker left may arrive so much later than the news that it has."""


class EngineLink:
    """To a remote engine, or to the workers of a supervisor.

    `on_event` is called from the link's own thread and must not block. Every submitted batch is
    answered by BatchDone, by BatchFailed, or in the `lost` of an EngineDown. One more thing can
    come from a remote engine: a BatchDone for a batch that was given up before. It is news from a
    link that was slower than expected, and is for counting only.
    """

    def __init__(
        self,
        engine: RemoteSpec | WorkerSupervisor,
        on_event: Callable[[EngineEvent], None],
        timing: LinkTiming | None = None,
    ) -> None:
        """`timing` is for remote engines; a supervisor has its own."""
        if isinstance(engine, WorkerSupervisor):
            self._supervisor: WorkerSupervisor | None = engine
            self._spec, self._name = RemoteSpec(""), engine.spec.options.policy
            self._timing = engine.link_timing
        else:
            self._supervisor = None
            self._spec, self._name = engine, engine.endpoint
            self._timing = timing or LinkTiming()
        self._on_event = on_event
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._encoder = BatchEncoder(
            self._spec.policy,
            self._spec.images,
            lambda: os.eventfd_write(self._wake, 1),
            receipts=self._supervisor is None,
        )
        self._lock = threading.Lock()
        self._stopping = self._failed = False
        self._monitor = LinkMonitor(self._timing, probes=self._supervisor is None)
        now = time.monotonic()
        self._peer = PeerState(now, now)
        self._connection: WorkerConnection | None = None
        self._connect_at = self._pinged = self._told = 0.0
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="engine-link", daemon=True)

    @property
    def description(self) -> EngineDescription | None:
        """What the engine serves, or None while it is not there."""
        return self._peer.description

    def start(self) -> None:
        """Starts the worker; or dials, or listens. EngineLoading or EngineUnreachable, then
        EngineReady (or EngineDown) follow.

        Raises ConfigError or zmq.ZMQError where a remote engine cannot be dialled or listened for.
        """
        self._context = zmq.Context()
        if self._supervisor is None:
            try:
                self._connect()
            except (KairosError, zmq.ZMQError):
                self._context.term()
                raise
        self._thread.start()

    def submit(self, batch: int, requests: Sequence[InferRequest], expected_s: float = 0.0) -> None:
        """Queues a batch; callable from any thread, never blocks.

        `batch` must be new in the life of the link and at least 1. `expected_s` is what it should
        compute. Raises KairosError after `stop`.
        """
        with self._lock:
            if self._stopping:
                raise KairosError(f"batch {batch} was submitted to an engine link that stopped")
            self._encoder.submit(batch, requests, expected_s, self._sendable)

    def stop(self) -> None:
        """Hangs up. A remote worker goes on for others; one of this host finishes its batch (for
        up to `WorkerTiming.stop_s`) and ends. Not from `on_event`."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake)

    @property
    def _sendable(self) -> EngineDescription | None:
        """The engine, if it takes batches."""
        return None if self._peer.draining else self._peer.description

    # The link's thread

    def _run(self) -> None:
        try:
            with self._supervisor or contextlib.nullcontext():
                while not self._stopping:
                    self._turn()
                if self._supervisor is not None:
                    self._let_finish(self._supervisor)
                if self._connection is not None:
                    self._down("stopped")
        except Exception as error:
            log.exception("the link to engine %s failed", self._name)
            self._failed = True
            self._down(f"the engine link failed: {error}")
            while not self._stopping:
                self._turn()
        finally:
            self._encoder.finish()
            self._send_batches()  # which fail: there is no engine any more
            self._disconnect()
            self._context.term()

    def _let_finish(self, supervisor: WorkerSupervisor) -> None:
        supervisor.terminate()
        until = time.monotonic() + supervisor.timing.stop_s
        while self._connection is not None and time.monotonic() < until:
            self._turn()

    def _turn(self) -> None:
        """Waits a moment for news, takes them in, sends what is to be sent."""
        supervisor = self._supervisor
        if self._connection is None and time.monotonic() >= self._connect_at:
            self._connect()
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        if self._connection is not None:
            poller.register(self._connection.socket, zmq.POLLIN)
        if supervisor and supervisor.pidfd is not None:
            poller.register(supervisor.pidfd, zmq.POLLIN)
        before = time.monotonic()
        ready = dict(poller.poll(int(250 * self._timing.heartbeat_s)))
        now = time.monotonic()
        if now - before > 2 * self._timing.heartbeat_s:
            self._peer.heard += now - before  # meanwhile, it was this side that slept
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._read()
        if supervisor and supervisor.pidfd in ready:
            self._worker_exited(supervisor)
        self._send_batches()
        if self._connection is not None:
            self._check(time.monotonic())

    def _connect(self) -> None:
        """To a worker that it starts first, where there is a supervisor."""
        supervisor = self._supervisor
        if supervisor is None:
            self._connection = WorkerConnection(self._context, self._spec)
            return
        endpoint = supervisor.new_endpoint()
        try:
            self._connection = WorkerConnection(self._context, RemoteSpec(endpoint))
            supervisor.start(endpoint)
        except (OSError, zmq.ZMQError) as error:
            self._down(f"the worker cannot be started at {endpoint}: {error}", hopeless=True)
            return
        self._told = now = time.monotonic()
        self._peer = PeerState(now, now)

    def _worker_exited(self, supervisor: WorkerSupervisor) -> None:
        reason, hopeless = supervisor.reap()
        until = time.monotonic() + (LAST_MESSAGES_S if hopeless else 0.0)
        self._read()  # what it said last
        while self._connection is not None and (left_s := until - time.monotonic()) > 0:
            self._connection.socket.poll(round(1e3 * left_s))
            self._read()
        if self._connection is not None:
            self._down(reason, hopeless=hopeless)

    def _read(self) -> None:
        try:
            while self._connection is not None:
                message = self._connection.receive()
                now = time.monotonic()
                self._peer.heard, self._peer.silence = now, ""
                self._on(message, now)
        except zmq.Again:
            return
        except WireError as error:
            self._down(f"the worker sent a malformed message: {error}")

    def _check(self, now: float) -> None:
        if reason := self._silence(now):
            self._down(reason)
            return
        for batch, seconds in self._monitor.give_up(now):
            reason = f"no answer after {seconds:.1f} s: lost on the way"
            self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, reason))
        if now - self._pinged >= self._timing.heartbeat_s:
            self._pinged, self._number = now, self._number + 1
            padding = self._monitor.padding(now)
            if self._send(encode(ping_message(self._number, self._spec.policy, padding))):
                self._monitor.pinged(self._number, padding, now)

    def _silence(self, now: float) -> str:
        """Why the worker counts as lost, or "". Tells of a remote one that is not there yet."""
        peer, silent = self._peer, now - self._peer.heard
        if self._supervisor is not None:
            timing = self._supervisor.timing
            limit = timing.silence_s if peer.description else timing.loading_silence_s
            return f"no heartbeat for {limit:g} s" if silent > limit else ""
        if peer.description is not None:
            is_lost = silent > self._monitor.patience_s
            return f"no sign of life for {silent:.1f} s" if is_lost else ""
        if silent > self._timing.silence_s and now - self._told >= 1.0 and not peer.complaint:
            self._told = now
            if not peer.silence:
                since = time.strftime("%H:%M:%S", time.localtime(time.time() - silent))
                how = "waiting for a worker to dial" if self._spec.listen else "dialling"
                peer.silence = f"since {since}, {how} {self._spec.endpoint}"
            self._emit(EngineUnreachable(peer.silence))
        return ""

    def _send_batches(self) -> None:
        """Or fails those that were encoded for an engine that is not there any more."""
        while self._encoder.encoded:
            encoded = self._encoder.encoded.popleft()
            batch, described = encoded.batch, encoded.described
            if described is None or described is not self._sendable:
                why = "the engine is stopping" if self._peer.draining else "the engine is down"
                self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, why))
            elif encoded.wrong:
                self._emit(BatchFailed(batch, RefusalCode.MALFORMED, encoded.wrong))
            else:
                now = time.monotonic()
                self._monitor.sent(batch, encoded.rows, encoded.size, encoded.expected_s, now)
                self._send(encoded.frames)

    def _send(self, frames: Sequence[Buffer]) -> bool:
        return self._connection is not None and self._connection.send(frames)

    def _on(self, message: Message, now: float) -> None:
        match message.kind:
            case "status":
                self._on_status(read_status(message), now)
            case "description":
                self._on_description(read_description(message), now)
            case "received":
                if self._monitor.confirmed(read_batch(message), now):
                    self._tell_link()
            case "result":
                result = read_result(message)
                took_s = self._monitor.answered(result.batch, len(result.outcomes), now)
                self._peer.useful = True
                computed = result.compute_s, took_s, result.prepare_s
                self._emit(BatchDone(result.batch, result.outcomes, *computed))
            case "error":
                self._on_error(message)
            case "echo":
                pass  # it made the way back fast
            case kind:
                raise WireError(f"unknown message {kind!r:.40}")

    def _on_status(self, status: WorkerStatus, now: float) -> None:
        if self._peer.worker not in ("", status.worker):
            self._down("the worker was started again")
        peer = self._peer
        if peer.worker != status.worker:
            peer.worker = status.worker
            self._monitor.found()
        if self._monitor.pong(status.ping, now) and self._connection is not None:
            segments = self._connection.new_segments()
            if segments is not None:
                self._monitor.segments(*segments)
        peer.replicas = status.replicas
        if status.language and status.language != peer.language:
            peer.language = status.language
            self._emit(LanguageChanged(status.language))
        match status.state:
            case "ready":
                peer.complaint = ""
                # The bandwidth is measured first: placement begins with what is true.
                if peer.description is None and self._monitor.probed:
                    self._send(encode(Message("hello", {"policy": self._spec.policy})))
            case "stopping":
                if peer.description and not peer.draining and not self._stopping:
                    peer.draining = True
                    self._emit(EngineDraining("the worker was told to stop"))
            case "loading":
                if status.stage != peer.stage or now - self._told >= 1.0:
                    peer.stage, self._told = status.stage, now
                    self._emit(EngineLoading(status.stage, now - peer.since))
            case "refused" if self._supervisor is not None:
                self._down(status.stage, hopeless=True)
            case _ if status.stage != peer.complaint:
                peer.complaint = status.stage
                self._emit(EngineDown(status.stage, (), self._timing.heartbeat_s, crashed=False))
        if peer.description is not None:
            self._tell_link()
        expected_s = self._monitor.expected_s(status.busy_batch)
        if self._supervisor and (reason := self._supervisor.hung(status, expected_s)):
            self._down(reason)

    def _on_description(self, described: EngineDescription, now: float) -> None:
        peer = self._peer
        if peer.description is None:
            peer.description = described
            if self._supervisor is not None:
                self._supervisor.was_up = True
            for camera in self._spec.images.unknown(described.images):
                log.warning("%s: the policy has no camera %r", self._name, camera)
            self._tell_link()
            self._emit(EngineReady(described, now - peer.since))

    def _on_error(self, message: Message) -> None:
        error = read_error(message)
        if error.batch is not None:
            if self._monitor.refused(error.batch):
                self._emit(BatchFailed(error.batch, error.code, error.reason))
        elif self._supervisor is not None:
            raise WireError(f"the worker could not read a message: {error.reason}")
        else:
            log.warning("%s: %s", self._name, error.reason)

    def _tell_link(self) -> None:
        if self._supervisor is None:
            self._emit(LinkChanged(self._monitor.state(self._peer.replicas)))

    def _down(self, reason: str, *, hopeless: bool = False) -> None:
        """Forgets the worker and what it was sent. Another one is started, or looked for, unless
        the link is stopped or has failed. `hopeless`: another worker would end the same way."""
        before, lost, now = self._peer, self._monitor.forget(), time.monotonic()
        self._peer = PeerState(now, now, complaint=before.complaint)
        over, supervisor = self._stopping or self._failed, self._supervisor
        retry_in_s: float | None = 0.0
        if supervisor is not None:
            retry_in_s = supervisor.end(useful=before.useful, hopeless=hopeless)
        retry_in_s = None if over else retry_in_s
        self._connect_at = math.inf if retry_in_s is None else now + retry_in_s
        if supervisor is not None or before.description is not None or lost or over:
            # The event's receiver reports it. Who has stopped the link receives nothing any more.
            level = logging.WARNING if self._stopping and lost else logging.DEBUG
            log.log(level, "engine %s is down: %s; batches lost: %d", self._name, reason, len(lost))
            told = "stopped" if self._stopping else reason
            failures = supervisor.failures if supervisor else 0
            crashed = supervisor is not None
            self._emit(EngineDown(told, lost, retry_in_s, crashed=crashed, failures=failures))
        if over or supervisor is not None or not self._spec.listen:
            # What waits in the old socket, and what may yet come through it, is nobody's any more.
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _emit(self, event: EngineEvent) -> None:
        try:
            self._on_event(event)
        except Exception:
            log.exception("on_event failed on %s", type(event).__name__)
