"""How long a batch takes over a long link when the link is new, warm, and idle for a while.

TCP feels its way up: what was never sent fast is not sent fast. The link of a serving node sends
probes when it finds a worker, and heartbeats ever after. Measured is whether that is enough: a
batch of six requests with three images each, from sending it to its answer, less what the worker
says it computed. With the real link and worker, keys, and an emulated WAN.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.cloud.hybrid_fleet import PORT, worker
from bench.cloud.hybrid_work import CAMERAS, PIXELS, Wan
from bench.transport.link import Link
from kairos_ros.engine.client import link_monitor
from kairos_ros.engine.client.engine_link import EngineLink
from kairos_ros.engine.client.events import BatchDone, EngineEvent, EngineReady, LinkChanged
from kairos_ros.engine.client.remote_spec import RemoteSpec
from kairos_ros.lab.live_replay.seen import blank_pictures
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder
from kairos_ros.transport.link_estimate import LinkState
from kairos_ros.transport.messages import InferRequest
from kairos_ros.transport.sockets import CurveClient

REQUESTS = 6
LATER = 6
PAUSE_S = 0.5
WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Warmth:
    """Milliseconds on the way, there and back, without compute."""

    congestion: str
    probes: int
    batch_bytes: float
    first_ms: float
    """Of the first batch ever."""
    first_expected_ms: float
    """What placement expected of it."""
    later_ms: float
    """Median of the next ones."""
    idle_s: float
    after_idle_ms: float
    """Of the first batch after nothing but heartbeats for so long."""
    later_again_ms: float


def warmth(folder: Path, idle_s: float) -> list[Warmth]:
    """Over 100 ms and 1 Gbps, by congestion control, with probes and without them."""
    arms: list[Warmth] = []
    idle = _Idle(idle_s)
    for probes in (link_monitor.PROBES, 0):
        with _probing(probes), ThreadPoolExecutor() as pool:
            runs = [
                pool.submit(_measure, Wan("", congestion=c), probes, folder / f"{c}_{probes}", idle)
                for c in ("cubic", "bbr")
            ]
            try:
                arms += [arm for run in runs if (arm := run.result()) is not None]
            except BaseException:
                idle.over.set()
                raise
    return arms


@dataclass(frozen=True, slots=True)
class _Idle:
    """For how long nothing is sent but heartbeats, unless `over` comes first."""

    seconds: float
    over: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def _probing(probes: int) -> Iterator[None]:
    before, link_monitor.PROBES = link_monitor.PROBES, probes
    try:
        yield
    finally:
        link_monitor.PROBES = before


def _measure(wan: Wan, probes: int, folder: Path, idle: _Idle) -> Warmth | None:
    """None where this kernel has no such congestion control."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    there, here = KeyFolder(folder / "there"), KeyFolder(folder / "here")
    there.trust(here.new("edge", Role.CLIENT).key)
    here.trust(there.new("cloud", Role.SERVER).key)
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(Link(wan.conditions, home=True))
        try:
            link.congestion(wan.congestion)
        except OSError:
            return None
        endpoint = f"tcp://{link.addresses[1]}:{PORT}"
        stack.enter_context(worker(link.inside(1), endpoint, there, folder))
        security = CurveClient(here.own(Role.CLIENT), here.server())
        engine = EngineLink(RemoteSpec(endpoint, security=security), events.put)
        engine.start()
        stack.callback(engine.stop)
        found = _until(events, EngineReady)[1]
        first_ms, sent = _batch(engine, events, 1)
        expected_s = found.rtt_s + REQUESTS * sent.request_bytes / found.bytes_per_s
        later_ms = _several(engine, events, 2)
        idle.over.wait(idle.seconds)
        return Warmth(
            congestion=wan.congestion,
            probes=probes,
            batch_bytes=REQUESTS * sent.request_bytes,
            first_ms=first_ms,
            first_expected_ms=1e3 * expected_s,
            later_ms=later_ms,
            idle_s=idle.seconds,
            after_idle_ms=_batch(engine, events, 100)[0],
            later_again_ms=_several(engine, events, 101),
        )


def _several(engine: EngineLink, events: Any, number: int) -> float:
    """Median milliseconds of the next batches, numbered from `number`."""
    times = []
    for i in range(LATER):
        time.sleep(PAUSE_S)
        times.append(_batch(engine, events, number + i)[0])
    return float(np.median(times))


def _batch(engine: EngineLink, events: Any, number: int) -> tuple[float, LinkState]:
    """Milliseconds on the way, and how the link was after the upload."""
    images = blank_pictures(dict.fromkeys(CAMERAS, (PIXELS, PIXELS)))
    requests = [
        InferRequest(f"arm_{i}", "s", "t", 1, 0, 1, "", np.zeros(1, np.float32), images)
        for i in range(REQUESTS)
    ]
    engine.submit(number, requests, 0.1)
    done, state = _until(events, BatchDone)
    return 1e3 * (done.round_trip_s - done.compute_s), state


def _until(events: Any, kind: type) -> tuple[Any, LinkState]:
    """The next event of a kind, and the newest news of the link before it."""
    state, until_s = None, time.monotonic() + WITHIN_S
    while True:
        event = events.get(timeout=max(0.01, until_s - time.monotonic()))
        if isinstance(event, LinkChanged):
            state = event.state
        if isinstance(event, kind):
            assert state is not None  # the link tells of itself before anything else happens
            return event, state
