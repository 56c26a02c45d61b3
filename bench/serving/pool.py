"""What a pool of replicas costs and brings: `python -m bench pool`.

Workers are real, with and without Ray, each behind a socket of this host; blocks alternate between
them. The hop is measured with engines that take no time: from sending a batch of requests with an
image of 500 KB each to its answer. What replicas bring is measured with engines that sleep 100 ms
per batch: batches/s, with twice as many batches under way as there are replicas.
"""

import argparse
import contextlib
import io
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import PIL.Image
from rich.console import Console
from rich.table import Table

from kairos_ros.engine.client.engine_link import EngineLink
from kairos_ros.engine.client.events import BatchDone, EngineEvent, EngineReady, LinkChanged
from kairos_ros.engine.client.remote_spec import RemoteSpec
from kairos_ros.transport.messages import InferRequest

ARMS = {"in process": 0, "pool of 1": 1, "pool of 2": 2, "pool of 4": 4}
POLICIES = ("now=emulated:images=top@408x408", "busy=emulated:latency_ms=100")
PIXELS = (408, 408, 3)
"""Of noise, which no compression makes smaller: 500 KB."""
BATCHES = (1, 8)
BLOCK = 40
PAUSE_S = 0.01
WITHIN_S = 180.0


class Served:
    """A link to one policy of a worker, used synchronously."""

    def __init__(self, endpoint: str, policy: str, replicas: int) -> None:
        self._events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
        self._batch = 0
        self.link = EngineLink(RemoteSpec(endpoint, policy), self._events.put)
        self.link.start()
        until = time.monotonic() + WITHIN_S
        while self.link.description is None or self._replicas(until) != max(1, replicas):
            pass

    def round_trip_s(self, requests: list[InferRequest]) -> float:
        self._submit(requests)
        return self._done().round_trip_s

    def batches_per_s(self, requests: list[InferRequest], under_way: int, seconds: float) -> float:
        for _ in range(under_way):
            self._submit(requests)
        done, started = 0, time.monotonic()
        while time.monotonic() - started < seconds:
            self._done()
            done += 1
            self._submit(requests)
        passed = time.monotonic() - started
        for _ in range(under_way):
            self._done()
        return done / passed

    def _submit(self, requests: list[InferRequest]) -> None:
        self._batch += 1
        self.link.submit(self._batch, requests, 1.0)

    def _done(self) -> BatchDone:
        while not isinstance(event := self._events.get(timeout=WITHIN_S), BatchDone):
            assert isinstance(event, LinkChanged | EngineReady), event
        return event

    def _replicas(self, until: float) -> int:
        event = self._events.get(timeout=max(0.1, until - time.monotonic()))
        return event.state.replicas if isinstance(event, LinkChanged) else 0


@contextlib.contextmanager
def worker(folder: Path, replicas: int) -> Iterator[str]:
    """The endpoint of a worker, of a pool where there are replicas."""
    endpoint = f"ipc://{folder}/{replicas}"
    command = [str(Path(sys.executable).with_name("kairos")), "worker", "--listen", endpoint]
    policies = [part for policy in POLICIES for part in ("--policy", policy)]
    pool = ["--pool", "ray", "--replicas", str(replicas)] if replicas else []
    with (folder / f"{replicas}.log").open("wb") as log:
        process = subprocess.Popen([*command, *policies, *pool], stdout=log, stderr=log)
    try:
        yield endpoint
    finally:
        process.terminate()
        process.wait()


def measure(folder: Path, blocks: int) -> Table:
    header = [f"batch of {n}: p50, p90 ms" for n in BATCHES]
    table = Table("", *header, "100 ms batches/s", "of what is possible")
    image = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, PIXELS, np.uint8)
    PIL.Image.fromarray(noise).save(image, "PNG", compress_level=1)
    small = InferRequest("arm", "s", "t", 1, 0, 1, "", np.zeros(7, np.float32))
    request = replace(small, images={"top": image.getvalue()})
    with contextlib.ExitStack() as stack:
        served = {}
        for arm, replicas in ARMS.items():
            endpoint = stack.enter_context(worker(folder, replicas))
            served[arm] = {policy: Served(endpoint, policy, replicas) for policy in ("now", "busy")}
            for link in served[arm].values():
                stack.callback(link.link.stop)
        times: dict[str, list[list[float]]] = {arm: [[] for _ in BATCHES] for arm in ARMS}
        for _ in range(blocks):
            for arm, links in served.items():
                for sizes, batch in zip(times[arm], BATCHES, strict=True):
                    for _ in range(BLOCK):
                        sizes.append(1e3 * links["now"].round_trip_s([request] * batch))
                        time.sleep(PAUSE_S)
        for arm, replicas in ARMS.items():
            rate = served[arm]["busy"].batches_per_s([small], 2 * max(1, replicas), 2.0 * blocks)
            cells = [f"{median(one):.1f}, {quantiles(one, n=10)[-1]:.1f}" for one in times[arm]]
            possible = 10.0 * max(1, replicas)
            table.add_row(arm, *cells, f"{rate:.1f}", f"{rate / possible:.0%}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench pool", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--blocks", type=int, default=5, help=f"of {BLOCK} batches each [5]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kairos-pool-") as folder:
        Console().print(measure(Path(folder), arguments.blocks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
