"""How long an engine waits between two batches at saturation: `python -m bench engine_idle`.

32 robots with three VGA cameras each ask again as soon as they are answered, so that there is
always a batch to compute. One worker, one link and one dispatcher, as in a serving node; robots are
a loop of this process. The policy is a small one with cameras, and its worker is paced as slowly
as a larger policy on a GPU would be (--latency), so that the CPU is free while a batch is computed,
as it is beside a GPU. With --policy it is that policy, at its own speed. Pictures are real JPEGs
and are decoded and copied for real.

Blocks alternate between batches that are sent when the last one is answered, whose pictures the
engine waits for, and batches that are sent so much earlier that they are decoded by then. Idle is
the share of a block in which the worker computed nothing.
"""

import argparse
import io
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench.support.arguments import positive_int
from bench.support.camera import picture
from bench.support.camera_policy import INSTRUCTION, PLUGIN
from bench.support.servers import ROOT
from kairos_ros.core.exchange import (
    Announcement,
    Answer,
    Observation,
    Refetch,
    Refusal,
    Request,
    RequestId,
)
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.engine.client.engine_link import EngineLink
from kairos_ros.engine.client.events import BatchDone, EngineDown, EngineEvent, EngineReady
from kairos_ros.engine.client.worker_supervisor import WorkerSupervisor
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.worker.process import WorkerSpec
from kairos_ros.serving.batching import Effect, Submit
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines import slot
from kairos_ros.serving.engines.engines import warmup_profile
from kairos_ros.serving.options import ServingOptions
from kairos_ros.transport.messages import EngineDescription

ROBOTS = 32
HEIGHT, WIDTH = 480, 640
PICTURES = 8
"""Different ones per camera."""
WITHIN_S = 300.0
"""Between two signs of life of an engine that loads."""
ARMS = {"sent when the last one is answered": 1 << 62, "sent ahead": slot.PREPARING_NS}
"""Decoding that is shorter than so many nanoseconds is not worth sending a batch earlier."""


def jpegs(described: EngineDescription) -> list[dict[str, bytes]]:
    """What the cameras of a robot see, several times; VGA where the policy takes any size."""
    seen = []
    for number in range(PICTURES):
        images = {}
        for place, (camera, own) in enumerate(described.images.items()):
            height, width = (HEIGHT, WIDTH) if described.any_image_size else own
            pixels = picture(number * len(described.images) + place, max(height, width))
            buffer = io.BytesIO()
            Image.fromarray(pixels[:height, :width]).save(buffer, "JPEG", quality=90)
            images[camera] = buffer.getvalue()
        seen.append(images)
    return seen


class Saturated:
    """A dispatcher and its engine, and robots that always want another chunk."""

    def __init__(self, link: EngineLink, events: "queue.SimpleQueue[EngineEvent]") -> None:
        self._link, self._events = link, events
        self._rounds = dict.fromkeys((f"arm_{i}" for i in range(ROBOTS)), 1)
        self._dispatcher = Dispatcher(
            ServingOptions(scheduling=parse_scheduling("wait_ratio"), horizon_policy="static:10")
        )
        self._dispatcher.add_engine("edge", "edge")
        self._beat_ns = 0

    def wait_ready(self) -> None:
        while not isinstance(event := self._events.get(timeout=WITHIN_S), EngineReady):
            if isinstance(event, EngineDown):
                raise SystemExit(f"the engine does not start: {event.reason}")
        self.description = event.description
        self._pictures = jpegs(event.description)
        profile = warmup_profile(event.description)
        self._dispatcher.engine_ready(self._now(), "edge", event.description, profile)

    def run(self, seconds: float) -> tuple[float, float, float]:
        """Idle share, robots answered per second, and mean batch, of a while."""
        self._heartbeat()
        for robot in self._rounds:
            self._carry_out(self._ask(robot, self._rounds[robot], 0))
        computed, answered, batches, began, ends = 0.0, 0, 0, 0.0, time.monotonic() + seconds
        while (now := time.monotonic()) < ends:
            self._heartbeat()
            wake_ns = self._dispatcher.wakeup_ns(self._now())
            left_s = ends - now if wake_ns is None else (wake_ns - self._now()) / 1e9
            try:
                event = self._events.get(timeout=min(max(left_s, 0.0), ends - now))
            except queue.Empty:
                self._carry_out(self._dispatcher.tick(self._now()))
                continue
            if isinstance(event, BatchDone):
                if began:  # the first one ends when counting begins
                    computed += event.compute_s
                    answered, batches = answered + len(event.outcomes), batches + 1
                began, last = began or time.monotonic(), time.monotonic()
                done = event.batch, event.outcomes, event.compute_s, event.prepare_s
                self._carry_out(self._dispatcher.batch_done(self._now(), "edge", *done))
        return 1 - computed / (last - began), answered / (last - began), answered / batches

    def _ask(self, robot: str, round_: int, attempt: int) -> list[Effect]:
        images = self._pictures[hash((robot, round_, attempt)) % PICTURES]
        observation = Observation(np.zeros(self.description.state_dim, np.float32), images)
        earlier = (observation,) * (self.description.observations - 1)
        request = Request(
            RequestId(robot, robot, "task", round_, attempt),
            (self.description.instructions or (INSTRUCTION,))[0],
            observation=observation,
            earlier=earlier,
        )
        return self._dispatcher.request(self._now(), request)

    def _carry_out(self, effects: list[Effect]) -> None:
        todo = list(effects)
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, Submit):
                self._link.submit(effect.batch, effect.requests, effect.expected_s)
            elif isinstance(effect, Answer):
                todo += self._answered(effect)

    def _answered(self, answer: Answer) -> list[Effect]:
        robot, round_ = answer.id.robot, answer.id.round
        if isinstance(answer.body, Refusal):
            raise SystemExit(f"refused: {answer.body.reason}")
        if isinstance(answer.body, Refetch):
            return self._ask(robot, round_, answer.id.attempt + 1)
        self._rounds[robot] = round_ + 1
        return self._ask(robot, round_ + 1, 0)

    def _heartbeat(self) -> None:
        now_ns = self._now()
        if now_ns - self._beat_ns > 1e9:
            self._beat_ns = now_ns
            for robot in self._rounds:
                self._dispatcher.announce(now_ns, Announcement(robot, robot, "task"))

    @staticmethod
    def _now() -> int:
        return time.monotonic_ns()


@contextmanager
def engine(options: EngineOptions, log: Path) -> Iterator[Saturated]:
    """A worker that is ready; `log` gets what it prints."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    path = (str(ROOT), str(PLUGIN), os.environ.get("PYTHONPATH", ""))
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    link = EngineLink(
        WorkerSupervisor(WorkerSpec(options, log=log, environment=environment)), events.put
    )
    link.start()
    try:
        saturated = Saturated(link, events)
        saturated.wait_ready()
        yield saturated
    finally:
        link.stop()


Blocks = dict[str, list[tuple[float, float, float]]]
"""Way of sending -> idle share, robots per second and mean batch of every block."""


def measure(
    options: EngineOptions, blocks: int, block_s: float, log: Path, progress: Callable[[str], None]
) -> Blocks:
    """Both ways of sending, alternating, with one worker."""
    found: Blocks = {arm: [] for arm in ARMS}
    with engine(options, log) as saturated:
        saturated.run(block_s)  # measures what decoding takes
        for block in range(blocks):
            for arm, least_ns in ARMS.items():
                slot.PREPARING_NS = least_ns
                found[arm].append(saturated.run(block_s))
                idle, rate, _ = found[arm][-1]
                progress(f"block {block + 1}, {arm}: idle {idle:.1%}, {rate:.1f} robots/s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench engine_idle", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--latency", default="60+15b", help="milliseconds per batch [60+15b]")
    parser.add_argument("--blocks", type=positive_int, default=5, help="per way of sending [5]")
    parser.add_argument("--block-s", type=float, default=10.0, help="length of one [10]")
    parser.add_argument("--policy", help="a policy folder in the place of the small, paced one")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda [auto]")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16 [auto]")
    parser.add_argument("--tokenizer", default="", help="folder of the tokenizer of --policy")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="kairos-engine-") as name:
        folder = Path(name)
        policy = arguments.policy
        if not policy:
            save = [sys.executable, "-m", "bench.support.camera_policy", name]
            subprocess.run([*save, "--size", f"{HEIGHT}x{WIDTH}"], check=True)
            policy = f"paced:latency_ms={arguments.latency}:{folder}"
        options = EngineOptions(
            policy, arguments.device, arguments.dtype, tokenizer=arguments.tokenizer
        )
        log = folder / "worker.log"
        found = measure(options, arguments.blocks, arguments.block_s, log, console.log)
    table = Table("batches", "idle", "of the blocks", "robots/s", "robots in a batch")
    for arm, blocks in found.items():
        idle, rate, batch = (median(values) for values in zip(*blocks, strict=True))
        least, most = min(block[0] for block in blocks), max(block[0] for block in blocks)
        spread = f"{least:.1%} to {most:.1%}"
        table.add_row(arm, f"{idle:.1%}", spread, f"{rate:.1f}", f"{batch:.1f}")
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
