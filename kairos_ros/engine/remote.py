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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

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
from kairos_ros.engine.wan_image import AS_SENT, WanImages, for_link
from kairos_ros.transport.door import Door
from kairos_ros.transport.endpoint import Insecure
from kairos_ros.transport.engine_wire import (
    WorkerStatus,
    infer_message,
    ping_message,
    read_description,
    read_error,
    read_received,
    read_result,
    read_status,
)
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.inbox import Inbox
from kairos_ros.transport.key_file import KeyPair
from kairos_ros.transport.key_folder import KeyFolder
from kairos_ros.transport.link_estimate import LinkEstimate
from kairos_ros.transport.messages import EngineDescription, InferRequest
from kairos_ros.transport.sockets import Behind, Towards, bind_dealer, connect_dealer
from kairos_ros.transport.tcp_segments import tcp_segments

log = logging.getLogger(__name__)

PROBES = 3
PROBE_BYTES = 262_144
"""Carried once when a worker is found, so that the first placement knows the bandwidth. Several,
because TCP starts slowly."""
BEHIND = -1


@dataclass(frozen=True, slots=True)
class AtHome:
    """How this side is secured where it is the worker that dials in."""

    own: KeyPair
    keys: KeyFolder
    worker: str
    """Name of the one client key that may come in."""


@dataclass(frozen=True, slots=True)
class RemoteSpec:
    """Which engine, and how it is reached."""

    endpoint: str
    policy: str = ""
    """Name in the worker's registry; empty: its only one."""
    security: Towards | AtHome | Insecure | None = None
    listen: bool = False
    """Wait for the worker to dial in, instead of dialling it."""
    images: WanImages = AS_SENT


@dataclass(frozen=True, slots=True)
class RemoteTiming:
    """When a link counts as lost. Seconds."""

    heartbeat_s: float = 0.2
    silence_s: float = 1.5
    """No sign of life for so long, besides four round trips: down. What was under way is served
    elsewhere then, so this bounds what robots notice."""
    overdue_s: float = 2.0
    overdue_factor: float = 3.0
    """A batch without an answer overdue_s after overdue_factor times what it and those before it
    should take is given up as lost; an answer that comes yet is dropped."""


@dataclass(slots=True)
class _Sent:
    rows: int
    size: int
    at: float
    due: float
    alone: bool
    """Nothing else was being uploaded: how long it takes tells the bandwidth."""
    confirmed: bool = False


@dataclass(slots=True)
class _Contact:
    """What is known of the worker since it was last found."""

    heard: float
    worker: str = ""
    description: EngineDescription | None = None
    draining: bool = False
    replicas: int = 1
    complaint: str = ""
    pings: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Number -> (when, padding). BEHIND: sent while a probe was on its way, and slowed by it."""
    probes: int = 0
    """Sent so far."""
    segments: tuple[int, int] = (0, 0)

    @property
    def probing(self) -> bool:
        """Whether a probe is on its way."""
        return any(padding > 0 for _, padding in self.pings.values())


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
        self._inbox: deque[tuple[int, Sequence[InferRequest], float]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._stopping = False
        self._sent: dict[int, _Sent] = {}
        self._estimate = LinkEstimate()
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
            self._inbox.append((batch, requests, expected_s))
            os.eventfd_write(self._wake, 1)

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
        while self._inbox:
            self._send_batch(*self._inbox.popleft())
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
            if silent > timing.silence_s + 4 * self._estimate.state().rtt_s:
                self._down(f"no sign of life for {silent:.1f} s", 0.0)
                return
        elif silent > timing.silence_s and now - self._told >= 1.0 and not contact.complaint:
            self._told = now
            how = "waiting for a worker at" if self._spec.listen else "dialling"
            self._emit(EngineLoading(f"{how} {self._spec.endpoint}", now - self._started))
        for batch, sent in [*self._sent.items()]:
            if now > sent.due:
                del self._sent[batch]
                reason = f"no answer after {now - sent.at:.1f} s: lost on the way"
                self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, reason))
        if now - self._pinged >= timing.heartbeat_s:
            self._ping(now)

    def _ping(self, now: float) -> None:
        contact = self._contact
        self._pinged, self._number = now, self._number + 1
        probe = self._estimate.known and contact.probes < PROBES and not contact.probing
        behind = BEHIND if contact.probing else 0
        padding = PROBE_BYTES if probe else 0
        contact.probes += probe
        if len(contact.pings) >= 64:
            contact.pings.pop(next(iter(contact.pings)))
        if self._send(encode(ping_message(self._number, self._spec.policy, padding))):
            contact.pings[self._number] = (now, padding or behind)

    def _send_batch(self, batch: int, requests: Sequence[InferRequest], expected_s: float) -> None:
        described = self._contact.description
        if described is None or self._contact.draining:
            reason = "the engine is stopping" if self._contact.draining else "the engine is down"
            self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, reason))
            return
        smaller = [for_link(request, described.images, self._spec.images) for request in requests]
        message = infer_message(batch, smaller, described.images)
        fields = {**message.fields, "policy": self._spec.policy, "tell": True}
        try:
            frames = encode(replace(message, fields=fields))
        except WireError as error:
            self._emit(BatchFailed(batch, RefusalCode.MALFORMED, str(error)))
            return
        size = sum(memoryview(frame).nbytes for frame in frames)
        now = time.monotonic()
        self._estimate.sent(len(requests), size)
        link, timing = self._estimate.state(), self._timing
        start = max((sent.due for sent in self._sent.values()), default=now + timing.overdue_s)
        due = start + timing.overdue_factor * (expected_s + link.upload_s(len(requests)))
        alone = all(sent.confirmed for sent in self._sent.values())
        self._sent[batch] = _Sent(
            len(requests), size, now, due + 2 * (link.rtt_s + 4 * link.jitter_s), alone
        )
        # A full socket means that nothing gets through; the missing heartbeat will tell.
        self._send(frames)

    def _send(self, frames: list) -> bool:
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
                case kind:
                    raise WireError(f"unknown message {kind!r:.40}")
        except WireError as error:
            self._down(f"the worker sent a malformed message: {error}", 0.0)

    def _on_status(self, status: WorkerStatus, now: float) -> None:
        contact = self._contact
        at, padding = contact.pings.pop(status.ping or 0, (now, BEHIND))
        if padding > 0:
            self._estimate.received(padding, now - at)
        elif padding == 0:
            self._estimate.round_trip(now, now - at)
            self._count_segments()
        if contact.worker != status.worker:
            if contact.worker:
                self._down("the worker was started again", 0.0)
                contact = self._contact
            contact.worker = status.worker
        contact.replicas = status.replicas
        match status.state:
            case "ready":
                contact.complaint = ""
                # The bandwidth is measured first: placement begins with what is true.
                probed = contact.probes == PROBES and not contact.probing
                if contact.description is None and probed:
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
                self._estimate.segments(sent, resent)

    def _on_description(self, described: EngineDescription, now: float) -> None:
        if self._contact.description is None:
            self._contact.description = described
            for camera in self._spec.images.unknown(described.images):
                log.warning("%s: the policy has no camera %r", self._spec.endpoint, camera)
            self._tell_link()
            self._emit(EngineReady(described, now - self._started))

    def _on_received(self, batch: int, now: float) -> None:
        sent = self._sent.get(batch)
        if sent is not None and not sent.confirmed:
            sent.confirmed = True
            if sent.alone:
                self._estimate.received(sent.size, now - sent.at)
            self._tell_link()

    def _on_result(self, message: Message, now: float) -> None:
        result = read_result(message)
        sent = self._sent.pop(result.batch, None)
        if sent is not None and len(result.outcomes) != sent.rows:
            self._sent[result.batch] = sent  # is lost with the link
            raise WireError(f"{len(result.outcomes)} outcomes for {sent.rows} requests")
        took_s = now - sent.at if sent else 0.0
        self._emit(BatchDone(result.batch, result.outcomes, result.compute_s, took_s))

    def _on_error(self, message: Message) -> None:
        error = read_error(message)
        if error.batch is None:
            log.warning("%s: %s", self._spec.endpoint, error.reason)
        elif self._sent.pop(error.batch, None):
            self._emit(BatchFailed(error.batch, error.code, error.reason))

    def _tell_link(self) -> None:
        waiting = [sent.size for sent in self._sent.values() if not sent.confirmed]
        replicas = self._contact.replicas
        self._emit(LinkChanged(self._estimate.state(len(self._sent), sum(waiting), replicas)))

    def _down(self, reason: str, retry_in_s: float | None) -> None:
        """Forgets the worker and what it was sent, and begins anew."""
        was_up = self._contact.description is not None
        lost = tuple(self._sent)
        self._sent.clear()
        self._contact = _Contact(time.monotonic(), complaint=self._contact.complaint)
        if was_up or lost or retry_in_s is None:
            log.warning("%s is down: %s; lost batches %s", self._spec.endpoint, reason, list(lost))
            self._emit(EngineDown(reason, lost, retry_in_s, crashed=False))
        while self._inbox:
            batch = self._inbox.popleft()[0]
            self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, reason))
        if retry_in_s is not None and not self._spec.listen:
            # What waits in the old socket, and what may yet come through it, is nobody's any more.
            self._close_socket()
            self._open()

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
