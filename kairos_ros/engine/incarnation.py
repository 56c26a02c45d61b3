"""One life of a worker process, from start to whatever ends it. Imports no torch."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.engine.events import (
    BatchDone,
    BatchFailed,
    EngineEvent,
    EngineLoading,
    EngineReady,
)
from kairos_ros.engine.exit_status import HOPELESS
from kairos_ros.engine.worker_process import WorkerSpec, how_it_ended, kill, start_worker
from kairos_ros.transport.engine_wire import (
    WorkerStatus,
    read_description,
    read_error,
    read_result,
    read_status,
)
from kairos_ros.transport.frames import Message, decode, encode
from kairos_ros.transport.messages import EngineDescription
from kairos_ros.transport.sockets import connect_dealer, receive


@dataclass(frozen=True, slots=True)
class Timing:
    """When a worker counts as hung, and how it is replaced. Seconds."""

    heartbeat_s: float = 0.2
    silence_s: float = 3.0
    """No answer to a heartbeat for so long: hung."""
    loading_silence_s: float = 120.0
    """The same while loading, where one call may hold the interpreter for long."""
    batch_min_s: float = 10.0
    batch_factor: float = 10.0
    """A batch that runs longer than max(batch_min_s, batch_factor * expected): hung."""
    stop_s: float = 10.0
    """What a worker gets to finish its batch when told to stop."""
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    """A life without a finished batch is followed by a wait: backoff_s, twice that, and so on up
    to backoff_max_s."""
    max_failures: int = 8
    """Give up after so many lives in a row without one finished batch."""


LAST_WORDS_S = 1.0
"""Why a worker left may arrive so much later than the news that it has."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A batch on its way to the worker, already in frames."""

    batch: int
    rows: int
    frames: list
    at: float
    expected_s: float


class Incarnation:
    """Lives in the handle's thread. After `run`, `outstanding` holds what was never answered.

    Raises OSError or zmq.ZMQError where it cannot begin; nothing is left of it then.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        timing: Timing,
        endpoint: str,
        emit: Callable[[EngineEvent], None],
    ) -> None:
        self._timing = timing
        self._emit = emit
        self._context = zmq.Context()
        try:
            self._socket = connect_dealer(self._context, endpoint)  # which waits for the worker
            self._process = start_worker(spec, endpoint)
        except (OSError, zmq.ZMQError):
            self._context.destroy(linger=0)
            raise
        self._started = self._heard = self._pinged = self._told = time.monotonic()
        self._stage = ""
        self.description: EngineDescription | None = None
        self.outstanding: dict[int, Submission] = {}
        self.batches_done = 0
        self.end = ""
        """Why this life ended; empty while it lasts."""
        self.hopeless = False
        """The next one would end the same way."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, wake: int, between: Callable[["Incarnation"], bool]) -> None:
        """Until the worker ends or hangs. `between` is called at every turn; True asks to stop.

        `wake` is an eventfd that makes a turn come at once.
        """
        pidfd = os.pidfd_open(self._process.pid)
        stop_at: float | None = None
        poller = zmq.Poller()
        for source in (self._socket, pidfd, wake):
            poller.register(source, zmq.POLLIN)
        try:
            while not self.end:
                before = time.monotonic()
                ready = dict(poller.poll(int(500 * self._timing.heartbeat_s)))
                now = time.monotonic()
                if now - before > 2 * self._timing.heartbeat_s:
                    self._heard = now  # it was this side that slept
                self._read(now)
                if pidfd in ready:
                    self._exited()
                elif stop_at is not None and now > stop_at:
                    self.end = f"told to stop, it did not within {self._timing.stop_s:g} s"
                else:
                    self._check(now)
                if between(self) and stop_at is None:
                    stop_at = now + self._timing.stop_s
                    self._process.send_signal(signal.SIGTERM)
        finally:
            os.close(pidfd)
            kill(self._process)
            self._socket.close()
            self._context.term()

    def submit(self, submission: Submission) -> None:
        """Sends the batch, or emits BatchFailed at once."""
        described = self.description
        if described is None:
            reason = "the engine is still loading"
            self._emit(BatchFailed(submission.batch, RefusalCode.ENGINE_DOWN, reason))
            return
        self.outstanding[submission.batch] = submission
        self._send(submission.frames)

    def _send(self, frames: list) -> None:
        # A full socket means that nobody reads it; the missing heartbeat will tell.
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK)

    def _exited(self) -> None:
        kill(self._process)  # ended already; this is for what it may have started
        hopeless = self._process.returncode in HOPELESS
        until = time.monotonic() + (LAST_WORDS_S if hopeless else 0.0)
        self._read(time.monotonic())  # what it said last
        while not self.end and (left_s := until - time.monotonic()) > 0:
            self._socket.poll(round(1e3 * left_s))
            self._read(time.monotonic())
        self.end = self.end or how_it_ended(self._process.returncode)
        self.hopeless = self.hopeless or hopeless

    def _check(self, now: float) -> None:
        timing = self._timing
        limit = timing.silence_s if self.description else timing.loading_silence_s
        if now - self._heard > limit:
            self.end = f"no heartbeat for {limit:g} s"
        if now - self._pinged >= timing.heartbeat_s:
            self._pinged = now
            self._send(encode(Message("ping")))

    def _read(self, now: float) -> None:
        while not self.hopeless:
            try:
                message = decode(receive(self._socket))
                self._heard = now
                self._on(message, now)
            except zmq.Again:
                return
            except WireError as error:
                self.end = f"the worker sent a malformed message: {error}"
                return

    def _on(self, message: Message, now: float) -> None:
        match message.kind:
            case "status":
                self._on_status(read_status(message), now)
            case "description":
                if self.description is None:
                    self.description = read_description(message)
                    self._emit(EngineReady(self.description, now - self._started))
            case "result":
                result = read_result(message)
                sent = self.outstanding.pop(result.batch, None)
                if sent is None:
                    return  # answered already
                if len(result.outcomes) != sent.rows:
                    raise WireError(f"{len(result.outcomes)} outcomes for {sent.rows} requests")
                self.batches_done += 1
                round_trip_s = now - sent.at
                self._emit(BatchDone(result.batch, result.outcomes, result.compute_s, round_trip_s))
            case "error":
                error = read_error(message)
                if error.batch is None:
                    raise WireError(f"the worker could not read a message: {error.reason}")
                if self.outstanding.pop(error.batch, None):
                    self._emit(BatchFailed(error.batch, error.code, error.reason))
            case kind:
                raise WireError(f"unknown message {kind!r:.40}")

    def _on_status(self, status: WorkerStatus, now: float) -> None:
        match status.state:
            case "ready" if self.description is None:
                self._send(encode(Message("hello")))
            case "loading":
                if status.stage != self._stage or now - self._told >= 1.0:
                    self._stage, self._told = status.stage, now
                    self._emit(EngineLoading(status.stage, now - self._started))
            case "refused":
                self.end, self.hopeless = status.stage, True
        running = self.outstanding.get(status.busy_batch) if status.busy_batch else None
        if running is not None:
            timing = self._timing
            limit = max(timing.batch_min_s, timing.batch_factor * running.expected_s)
            if status.busy_s > limit:
                self.end = f"batch {running.batch} runs for {status.busy_s:.1f} s, limit {limit:g}"
