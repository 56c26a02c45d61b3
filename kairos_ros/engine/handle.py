"""Keeps one engine worker alive and speaks with it, for the serving node. Imports no torch."""

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from kairos_ros.core.errors import KairosError, RefusalCode
from kairos_ros.engine.events import (
    BatchFailed,
    EngineDown,
    EngineEvent,
    EngineReady,
)
from kairos_ros.engine.incarnation import Incarnation, Submission, Timing
from kairos_ros.engine.worker_process import WorkerSpec, private_folder
from kairos_ros.transport.engine_wire import infer_message
from kairos_ros.transport.frames import encode
from kairos_ros.transport.messages import EngineDescription, InferRequest

log = logging.getLogger(__name__)


class EngineHandle:
    """A worker process that is restarted when it dies or hangs.

    `on_event` is called from the handle's own thread and must not block. Every submitted batch is
    answered exactly once: by BatchDone, by BatchFailed, or in the `lost` of an EngineDown. Answers
    of an earlier worker cannot arrive, because each one has an endpoint of its own.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        on_event: Callable[[EngineEvent], None],
        timing: Timing | None = None,
    ) -> None:
        self._spec = spec
        self._on_event = on_event
        self._timing = timing or Timing()
        self._inbox: deque[Submission] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = threading.Event()
        self._description: EngineDescription | None = None
        self._worker: Incarnation | None = None
        self._thread = threading.Thread(target=self._live, name="engine-handle", daemon=True)

    @property
    def description(self) -> EngineDescription | None:
        """What the engine serves, or None while none is up."""
        return self._description

    @property
    def pid(self) -> int | None:
        """The worker's process id, or None while there is none."""
        worker = self._worker
        return worker.pid if worker else None

    def start(self) -> None:
        """Starts the worker; EngineLoading and EngineReady (or EngineDown) follow."""
        self._thread.start()

    def submit(self, batch: int, requests: Sequence[InferRequest], expected_s: float = 0.0) -> None:
        """Queues a batch; callable from any thread, never blocks.

        `batch` must be new in the life of the handle and at least 1. `expected_s` is how long it
        should take: one that takes much longer counts as hung. Raises WireError for a request
        that cannot travel, KairosError after `stop`.
        """
        described = self._description
        wanted = described.images if described else ()
        frames = encode(infer_message(batch, requests, wanted))
        now = time.monotonic()
        with self._lock:
            if self._closed:
                raise KairosError(f"batch {batch} was submitted to an engine handle that stopped")
            self._inbox.append(Submission(batch, len(requests), frames, now, expected_s))
            os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Lets the running batch finish (up to `Timing.stop_s`), ends the worker, and returns.

        Not from `on_event`.
        """
        self._stopping.set()
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()

    def _live(self) -> None:
        try:
            self._lives()
        except Exception as error:
            log.exception("the handle of engine %s failed", self._spec.options.policy)
            lost = tuple(self._worker.outstanding) if self._worker else ()
            self._worker = self._description = None
            self._emit(EngineDown(f"the engine handle failed: {error}", lost, None))
        while not self._stopping.is_set():
            self._sleep(1.0)
        self._close()

    def _lives(self) -> None:
        """One after the other, until the handle is stopped or there is no use in another."""
        with private_folder() as folder:
            life, failures = 0, 0
            while not self._stopping.is_set():
                life += 1
                failures = self._one_life(folder, life, failures)
                if failures < 0:
                    break
                self._sleep(self._backoff(failures))

    def _one_life(self, folder: Path, life: int, failures: int) -> int:
        """Returns how many lives in a row were of no use, or -1 when no other shall follow."""
        timing, endpoint = self._timing, f"ipc://{folder}/{life}"
        try:
            worker = Incarnation(self._spec, timing, endpoint, self._emit)
        except (OSError, zmq.ZMQError) as error:
            reason = f"the worker cannot be started at {endpoint}: {error}"
            self._emit(EngineDown(reason, (), None))
            return -1
        self._worker = worker
        worker.run(self._wake, self._turn)
        self._worker = self._description = None
        failures = 0 if worker.batches_done else failures + 1
        stopped = self._stopping.is_set()
        if worker.hopeless or failures >= timing.max_failures or stopped:
            failures = -1
        retry_in_s = None if failures < 0 else self._backoff(failures)
        lost = tuple(worker.outstanding)
        log.log(
            logging.INFO if stopped else logging.ERROR,
            "engine %s is down: %s; lost batches %s; retry in %s s",
            self._spec.options.policy,
            worker.end,
            list(lost),
            retry_in_s,
        )
        self._emit(EngineDown("stopped" if stopped else worker.end, lost, retry_in_s))
        self._refuse_inbox("the engine stopped" if stopped else worker.end)
        return failures

    def _turn(self, worker: Incarnation) -> bool:
        self._drain_wake()
        while self._inbox:
            worker.submit(self._inbox.popleft())
        return self._stopping.is_set()

    def _backoff(self, failures: int) -> float:
        """Seconds until the next life: none after a useful one."""
        timing = self._timing
        wait = timing.backoff_s * 2 ** (failures - 1) if failures else 0.0
        return min(timing.backoff_max_s, wait)

    def _sleep(self, seconds: float) -> None:
        """Waits between two lives, refusing what is submitted meanwhile."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            poller.poll(1e3 * left)
            self._drain_wake()
            self._refuse_inbox("the engine is down")

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            os.close(self._wake)
        self._refuse_inbox("the engine stopped")

    def _refuse_inbox(self, reason: str) -> None:
        while self._inbox:
            batch = self._inbox.popleft().batch
            self._emit(BatchFailed(batch, RefusalCode.ENGINE_DOWN, reason))

    def _emit(self, event: EngineEvent) -> None:
        if isinstance(event, EngineReady):
            self._description = event.description
        try:
            self._on_event(event)
        except Exception:
            log.exception("on_event failed on %s", type(event).__name__)
