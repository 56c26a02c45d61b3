"""Starts a worker process, watches it, kills it, and says when the next one follows. No torch.

An `EngineLink` speaks with the worker, and drives all of this from its own thread.
"""

import contextlib
import logging
import math
import os
import signal
import subprocess
from dataclasses import dataclass

from kairos_ros.engine.client.link_monitor import LinkTiming
from kairos_ros.engine.worker.process import (
    HOPELESS,
    WorkerSpec,
    how_it_ended,
    kill,
    private_folder,
    start_worker,
)
from kairos_ros.transport.messages import WorkerStatus

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerTiming:
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
    """A worker that ends without a finished batch is followed by a wait: backoff_s, twice that,
    and so on up to backoff_max_s."""
    max_failures: int = 8
    """After so many workers in a row without one finished batch an engine that never was up is
    given up. One that was is started again every `backoff_max_s`, for ever."""


class WorkerSupervisor:
    """One worker after the other, each with an endpoint of its own. A context manager."""

    def __init__(self, spec: WorkerSpec, timing: WorkerTiming | None = None) -> None:
        self.spec = spec
        self.timing = timing or WorkerTiming()
        self.was_up = False
        """A worker has been ready."""
        self.failures = 0
        """Workers in a row that ended without one finished batch."""
        self.pidfd: int | None = None
        """Readable once the process has ended; None while there is none."""
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._folder = contextlib.ExitStack()

    @property
    def link_timing(self) -> LinkTiming:
        """Late batches are not given up: a worker that computes for too long is killed."""
        return LinkTiming(self.timing.heartbeat_s, self.timing.silence_s, overdue_s=math.inf)

    @property
    def pid(self) -> int | None:
        """The worker's process id, or None while there is none."""
        process = self._process
        return process.pid if process else None

    def __enter__(self) -> None:
        """Raises OSError where there is no place for a socket."""
        self._path = self._folder.enter_context(private_folder())

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._folder.close()

    def new_endpoint(self) -> str:
        self._starts += 1
        return f"ipc://{self._path}/{self._starts}"

    def start(self, endpoint: str) -> None:
        """Raises OSError. The worker dies with the calling thread."""
        self._process = start_worker(self.spec, endpoint)
        self.pidfd = os.pidfd_open(self._process.pid)

    def terminate(self) -> None:
        """Tells the worker to finish its batch and leave."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def reap(self) -> tuple[str, bool]:
        """How a worker that has ended did so, and whether the next one would end the same way."""
        assert self._process is not None
        kill(self._process)  # ended already; this is for what it may have started
        return how_it_ended(self._process.returncode), self._process.returncode in HOPELESS

    def hung(self, status: WorkerStatus, expected_s: float | None) -> str:
        """Why a worker counts as hung that runs a batch which should take `expected_s` (None: it
        runs none); or ""."""
        if expected_s is None:
            return ""
        limit = max(self.timing.batch_min_s, self.timing.batch_factor * expected_s)
        if status.busy_s <= limit:
            return ""
        return f"batch {status.busy_batch} runs for {status.busy_s:.1f} s, limit {limit:g}"

    def end(self, *, useful: bool, hopeless: bool) -> float | None:
        """Kills what is left of the worker; it was `useful` if it has finished a batch. Seconds
        until the next one may start, None where none ever shall."""
        self._kill()
        timing = self.timing
        self.failures = 0 if useful else self.failures + 1
        if hopeless or self.failures >= timing.max_failures:
            return timing.backoff_max_s if self.was_up else None
        wait_s = timing.backoff_s * 2 ** (self.failures - 1) if self.failures else 0.0
        return min(timing.backoff_max_s, wait_s)

    def _kill(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
        if self._process is not None:
            kill(self._process)
        self._process = self.pidfd = None
