"""An engine on another machine, for the serving node: what `EngineHandle` is for a local one.

The worker is not ours to start or to kill. What is watched is the link: heartbeats, the worker's
identity, how long batches are on their way. Imports no torch.
"""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Buffer, Callable, Iterator, Sequence
from dataclasses import dataclass

import zmq

from kairos_ros.core.errors import KairosError, RefusalCode, WireError
from kairos_ros.engine.events import (
    BatchDone,
    BatchFailed,
    EngineDown,
    EngineDraining,
    EngineEvent,
    EngineLoading,
    EngineReady,
    LinkChanged,
)
from kairos_ros.engine.link_book import LinkBook, RemoteTiming
from kairos_ros.engine.link_packer import Packed, Packer
from kairos_ros.engine.remote_spec import AtHome, RemoteSpec
from kairos_ros.transport.door import Door
from kairos_ros.transport.endpoint import Insecure
from kairos_ros.transport.engine_wire import (
    WorkerStatus,
    ping_message,
    read_description,
    read_error,
    read_received,
    read_result,
    read_status,
)
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.inbox import Inbox
from kairos_ros.transport.messages import EngineDescription, InferRequest
from kairos_ros.transport.sockets import Behind, Towards, bind_dealer, connect_dealer
from kairos_ros.transport.tcp_segments import tcp_segments

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Contact:
    """What is known of the worker since it was last found."""

    heard: float
    worker: str = ""
    description: EngineDescription | None = None
    draining: bool = False
    replicas: int = 1
    complaint: str = ""
    segments: tuple[int, int] = (0, 0)


class RemoteEngine:
    """Same contract as `EngineHandle`: every batch ends in BatchDone, BatchFailed or a `lost`.

    One more thing can come: a BatchDone for a batch that was given up before. It is news from a
    link that was slower than expected, and is for counting only.
    """

    def __init__(
        self,
        spec: RemoteSpec,
        on_event: Callable[[EngineEvent], None],
        timing: RemoteTiming | None = None,
    ) -> None:
        self._spec = spec
        self._on_event = on_event
        self._timing = timing or RemoteTiming()
        self._packer = Packer(spec, self._packed)
        self._outbox: deque[Packed] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._stopping = False
        self._book = LinkBook(self._timing)
        self._started = time.monotonic()
        self._contact = _Contact(self._started)
        self._pinged = self._told = 0.0
        self._number = 0
        self._thread = threading.Thread(target=self._live, name="remote-engine", daemon=True)

    @property
    def description(self) -> EngineDescription | None:
        """What the engine serves, or None while it is not there."""
        return self._contact.description

    def start(self) -> None:
        """Dials, or listens. Raises ConfigError or zmq.ZMQError where that is impossible."""
        self._context = zmq.Context()
        self._door: Door | None = None
        try:
            self._open()
        except (KairosError, zmq.ZMQError):
            if self._door is not None:
                self._door.close()
            self._context.term()
            raise
        self._thread.start()

    def submit(self, batch: int, requests: Sequence[InferRequest], expected_s: float = 0.0) -> None:
        """Queues a batch; callable from any thread, never blocks. `batch` must be new.

        `expected_s` is what it should compute. Raises KairosError after `stop`.
        """
        with self._lock:
            if self._stopping:
                raise KairosError(f"batch {batch} was submitted to an engine link that stopped")
            try:
                self._packer.pack(batch, requests, expected_s, self._sendable)
            except RuntimeError:  # the link's thread has failed and finished with it
                self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, "the link failed"))

    def stop(self) -> None:
        """Hangs up. The worker goes on for others."""
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
        contact = self._contact
        return None if contact.draining else contact.description

    def _packed(self, packed: Packed) -> None:
        self._outbox.append(packed)
        os.eventfd_write(self._wake, 1)

    # The link's thread

    def _live(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except Exception:
            log.exception("the link to %s failed", self._spec.endpoint)
            self._down("the link failed on this side, see the log", None)
        else:
            self._down("stopped", None)
        finally:
            self._packer.finish()
            self._fail_outbox("stopped")
            self._close_socket()
            if self._door is not None:
                self._door.close()
            self._context.term()

    def _turn(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        before = time.monotonic()
        poller.poll(int(250 * self._timing.heartbeat_s))
        now = time.monotonic()
        if now - before > self._timing.silence_s / 2:
            self._contact.heard = now  # it was this side that slept
        for message in self._messages():
            self._contact.heard = now
            self._on(message, now)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._outbox:
            self._send_batch(self._outbox.popleft())
        self._check(time.monotonic())

    def _messages(self) -> Iterator[Message]:
        while True:
            try:
                yield decode(self._reader.receive())
            except zmq.Again:
                return
            except WireError as error:
                self._down(f"the worker sent a malformed message: {error}", 0.0)
                return

    def _check(self, now: float) -> None:
        contact, timing = self._contact, self._timing
        silent = now - contact.heard
        if contact.description or contact.draining:
            if silent > self._book.patience_s:
                self._down(f"no sign of life for {silent:.1f} s", 0.0)
                return
        elif silent > timing.silence_s and now - self._told >= 1.0 and not contact.complaint:
            self._told = now
            how = "waiting for a worker at" if self._spec.listen else "dialling"
            self._emit(EngineLoading(f"{how} {self._spec.endpoint}", now - self._started))
        for batch, seconds in self._book.give_up(now):
            reason = f"no answer after {seconds:.1f} s: lost on the way"
            self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, reason))
        if now - self._pinged >= timing.heartbeat_s:
            self._ping(now)

    def _ping(self, now: float) -> None:
        self._pinged, self._number = now, self._number + 1
        padding = self._book.padding(now)
        if self._send(encode(ping_message(self._number, self._spec.policy, padding))):
            self._book.pinged(self._number, padding, now)

    def _send_batch(self, packed: Packed) -> None:
        batch = packed.batch
        if packed.described is None or packed.described is not self._sendable:
            reason = "the engine is stopping" if self._contact.draining else "the engine is down"
            self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, reason))
            return
        if packed.wrong:
            self._emit(BatchFailed(batch, RefusalCode.MALFORMED, packed.wrong))
            return
        size = sum(memoryview(frame).nbytes for frame in packed.frames)
        self._book.sent(batch, packed.rows, size, packed.expected_s, time.monotonic())
        # A full socket means that nothing gets through; the missing heartbeat will tell.
        self._send(packed.frames)

    def _send(self, frames: Sequence[Buffer]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _on(self, message: Message, now: float) -> None:
        try:
            match message.kind:
                case "status":
                    self._on_status(read_status(message), now)
                case "description":
                    self._on_description(read_description(message), now)
                case "received":
                    self._on_received(read_received(message), now)
                case "result":
                    self._on_result(message, now)
                case "error":
                    self._on_error(message)
                case "echo":
                    pass  # it made the way back fast
                case kind:
                    raise WireError(f"unknown message {kind!r:.40}")
        except WireError as error:
            self._down(f"the worker sent a malformed message: {error}", 0.0)

    def _on_status(self, status: WorkerStatus, now: float) -> None:
        contact = self._contact
        if contact.worker != status.worker:
            if contact.worker:
                self._down("the worker was started again", 0.0)
                contact = self._contact
            contact.worker = status.worker
            self._book.found()
        if self._book.pong(status.ping, now):
            self._count_segments()
        contact.replicas = status.replicas
        match status.state:
            case "ready":
                contact.complaint = ""
                # The bandwidth is measured first: placement begins with what is true.
                if contact.description is None and self._book.probed:
                    self._send(encode(Message("hello", {"policy": self._spec.policy})))
            case "stopping":
                if contact.description and not contact.draining:
                    contact.draining = True
                    self._emit(EngineDraining("the worker was told to stop"))
            case "loading":
                if now - self._told >= 1.0:
                    self._told = now
                    self._emit(EngineLoading(status.stage, now - self._started))
            case _ if status.stage != contact.complaint:
                contact.complaint = status.stage
                self._emit(EngineDown(status.stage, (), self._timing.heartbeat_s, crashed=False))
        if contact.description:
            self._tell_link()

    def _count_segments(self) -> None:
        segments = tcp_segments(self._reader.descriptor)
        if segments is not None:
            sent, resent = (
                new - old for new, old in zip(segments, self._contact.segments, strict=True)
            )
            self._contact.segments = segments
            if sent >= 0 and resent >= 0:  # else it is another connection
                self._book.segments(sent, resent)

    def _on_description(self, described: EngineDescription, now: float) -> None:
        if self._contact.description is None:
            self._contact.description = described
            for camera in self._spec.images.unknown(described.images):
                log.warning("%s: the policy has no camera %r", self._spec.endpoint, camera)
            self._tell_link()
            self._emit(EngineReady(described, now - self._started))

    def _on_received(self, batch: int, now: float) -> None:
        if self._book.confirmed(batch, now):
            self._tell_link()

    def _on_result(self, message: Message, now: float) -> None:
        result = read_result(message)
        took_s = self._book.answered(result.batch, len(result.outcomes), now)
        self._emit(BatchDone(result.batch, result.outcomes, result.compute_s, took_s))

    def _on_error(self, message: Message) -> None:
        error = read_error(message)
        if error.batch is None:
            log.warning("%s: %s", self._spec.endpoint, error.reason)
        elif self._book.refused(error.batch):
            self._emit(BatchFailed(error.batch, error.code, error.reason))

    def _tell_link(self) -> None:
        self._emit(LinkChanged(self._book.state(self._contact.replicas)))

    def _down(self, reason: str, retry_in_s: float | None) -> None:
        """Forgets the worker and what it was sent, and begins anew."""
        was_up = self._contact.description is not None
        lost = self._book.forget()
        self._contact = _Contact(time.monotonic(), complaint=self._contact.complaint)
        if was_up or lost or retry_in_s is None:
            level = logging.INFO if retry_in_s is None and not lost else logging.WARNING
            at = self._spec.endpoint
            log.log(level, "%s is down: %s; lost batches %s", at, reason, list(lost))
            self._emit(EngineDown(reason, lost, retry_in_s, crashed=False))
        self._fail_outbox(reason)
        if retry_in_s is not None and not self._spec.listen:
            # What waits in the old socket, and what may yet come through it, is nobody's any more.
            self._close_socket()
            self._open()

    def _fail_outbox(self, reason: str) -> None:
        while self._outbox:
            batch = self._outbox.popleft().batch
            self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, reason))

    def _open(self) -> None:
        spec = self._spec
        match spec.security:
            case AtHome() as home:
                if self._door is None:
                    self._door = Door(self._context, home.keys, only=frozenset({home.worker}))
                behind = Behind(home.own, self._door)
                self._socket = bind_dealer(self._context, spec.endpoint, security=behind)
            case Insecure() | None if spec.listen:
                self._socket = bind_dealer(self._context, spec.endpoint, security=spec.security)
            case Towards() | Insecure() | None:
                self._socket = connect_dealer(self._context, spec.endpoint, security=spec.security)
        self._reader = Inbox(self._socket, self._door)

    def _close_socket(self) -> None:
        self._socket.close(linger=0)

    def _emit(self, event: EngineEvent) -> None:
        try:
            self._on_event(event)
        except Exception:
            log.exception("on_event failed on %s", type(event).__name__)
