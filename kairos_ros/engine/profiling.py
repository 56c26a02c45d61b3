"""Measuring an engine through its worker: what a serving node will see. Imports no torch."""

import io
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.profile import EngineProfile
from kairos_ros.engine.client.engine_link import EngineLink
from kairos_ros.engine.client.events import (
    BatchDone,
    BatchFailed,
    EngineDown,
    EngineEvent,
    EngineLoading,
    EngineReady,
)
from kairos_ros.engine.client.worker_supervisor import WorkerSupervisor
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.worker.process import WorkerSpec
from kairos_ros.transport.messages import EngineDescription, InferFailure, InferRequest

WARM_UP_ROUNDS = 2
"""Rounds over all batch sizes that are not counted."""


class ProfiledEngine:
    """A running worker, used synchronously."""

    def __init__(self, link: EngineLink, events: queue.SimpleQueue[EngineEvent]) -> None:
        self._link = link
        self._events = events
        self._batch = 0
        self.description: EngineDescription

    def wait_ready(self, progress: Callable[[str], None]) -> EngineDescription:
        """Raises PolicyError when the engine does not come up."""
        while not isinstance(event := self._events.get(), EngineReady):
            if isinstance(event, EngineLoading):
                progress(event.stage)
            elif isinstance(event, EngineDown):
                raise PolicyError(event.reason)
        self.description = event.description
        return event.description

    def infer(self, requests: Sequence[InferRequest]) -> tuple[float, float]:
        """Seconds of compute, and of the round trip without compute and decoding, for one batch.

        Raises PolicyError when any request fails.
        """
        self._batch += 1
        self._link.submit(self._batch, requests, expected_s=3600.0)
        match self._events.get():
            case BatchDone() as done:
                for outcome in done.outcomes:
                    if isinstance(outcome, InferFailure):
                        raise PolicyError(f"the policy failed while profiled: {outcome.reason}")
                engine_s = done.prepare_s + done.compute_s
                return done.compute_s, max(0.0, done.round_trip_s - engine_s)
            case BatchFailed(reason=reason) | EngineDown(reason=reason):
                raise PolicyError(f"the engine failed while profiled: {reason}")
            case event:
                raise PolicyError(f"unexpected {type(event).__name__} while profiled")


@contextmanager
def profiled_engine(options: EngineOptions, log: Path | None) -> Iterator[ProfiledEngine]:
    """Starts a worker and stops it in the end; `log` gets what it prints."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    link = EngineLink(WorkerSupervisor(WorkerSpec(options, log=log)), events.put)
    link.start()
    try:
        yield ProfiledEngine(link, events)
    finally:
        link.stop()


def batch_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the largest."""
    return tuple(sorted({2**power for power in range(largest.bit_length())} | {largest}))


def measure(
    engine: ProfiledEngine,
    options: EngineOptions,
    sizes: Sequence[int],
    repeats: int,
    instruction: str,
    advance: Callable[[], None],
) -> EngineProfile:
    """Latency of every batch size: `repeats` rounds over all sizes, in changing order, so that
    whatever else the machine does meets them all alike. `advance` is called after every batch.

    Raises ConfigError for sizes the engine does not take, PolicyError when a batch fails.
    """
    described = engine.description
    if not sizes or max(sizes) > described.max_batch or min(sizes) < 1:
        raise ConfigError(
            f"batch sizes {list(sizes)}: this engine takes 1 to {described.max_batch}"
        )
    order = np.random.default_rng(0)
    rows = [sample_request(described, row, instruction) for row in range(max(sizes))]
    compute: dict[int, list[float]] = {size: [] for size in sizes}
    network: list[float] = []
    for round_ in range(WARM_UP_ROUNDS + repeats):
        for size in order.permutation(sizes).tolist():
            compute_s, network_s = engine.infer(rows[:size])
            if round_ >= WARM_UP_ROUNDS:
                compute[size].append(compute_s)
                network.append(network_s)
            advance()
    p10, p50, p90 = (
        tuple(float(np.quantile(compute[size], q)) for size in sizes) for q in (0.1, 0.5, 0.9)
    )
    return EngineProfile(
        policy_id=described.policy_id,
        machine=machine(options.threads),
        device=described.device,
        dtype=described.dtype,
        batch_sizes=tuple(sizes),
        p50_s=p50,
        p10_s=p10,
        p90_s=p90,
        network_s=float(np.median(network)),
    )


def sample_request(described: EngineDescription, row: int, instruction: str) -> InferRequest:
    """A made-up observation that the engine accepts; `instruction` where it reads free text."""
    generator = np.random.default_rng(row)
    known = described.instructions

    def seen() -> Observation:
        state = generator.uniform(-0.5, 0.5, described.state_dim).astype(np.float32)
        return Observation(
            state, {key: _jpeg(generator, size) for key, size in described.images.items()}
        )

    newest, *earlier = [seen() for _ in range(described.observations)]
    return InferRequest(
        robot=f"profile_{row}",
        session="profile",
        task="profile",
        round=1,
        attempt=0,
        seed=row,
        instruction=known[row % len(known)] if known else instruction,
        state=newest.state,
        images=newest.images,
        earlier=tuple(earlier),
    )


def machine(threads: int) -> str:
    """What this measurement belongs to: processor, its cores, and the threads used."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown CPU'}, {os.cpu_count()} cores, {threads} used"


def _jpeg(generator: np.random.Generator, size: tuple[int, int]) -> bytes:
    """Soft random colours: compresses about as well as a camera image does."""
    from PIL import Image

    coarse = generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()
