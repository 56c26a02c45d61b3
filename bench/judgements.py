"""Safety and monitor on one model: our queue in front of it, against sending everything at once.

Six monitor and two safety questions every 250 ms, in any order, to a model server in a process of
its own that answers in the order of arrival (bench/judge_host.py). The ways to ask alternate within
one run, several times.
"""

import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.report import BASELINE, OURS, Result, new_figure
from bench.servers import ROOT, environment
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.metaworld_scenes import SCENES
from kairos_ros.robot.sim import SimAdapter
from kairos_ros.vlm.desk import Desk, Matter, Settled
from kairos_ros.vlm.endpoint import Endpoint, EndpointJudge
from kairos_ros.vlm.judgement_queue import Order, Owed, earliest_deadline, first_come
from kairos_ros.vlm.questions import (
    DONE,
    FAILED,
    ONGOING,
    SAFE,
    SAFETY,
    SAFETY_PROMPT,
    TASK_STATE,
    TASK_STATE_PROMPT,
    UNSAFE,
)

BURST_S = 0.25
SAFETIES, MONITORS = 2, 6
SLO_MS = {SAFETY: 100.0, TASK_STATE: 500.0}
ANSWERS = {SAFETY: (SAFE, UNSAFE), TASK_STATE: (ONGOING, DONE, FAILED)}
PROMPT = {SAFETY: SAFETY_PROMPT, TASK_STATE: TASK_STATE_PROMPT}
REPETITIONS, BLOCK_S = 6, 12.0
QUICK_REPETITIONS, QUICK_BLOCK_S = 2, 5.0
SCENE, CAMERA, PX = "push-v3", "corner3", 144
UP_WITHIN_S = 60.0
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask."""

    name: str
    order: Order
    in_flight: int


FIFO = Way("all at once", first_come, SAFETIES + MONITORS)
WAYS = (
    FIFO,
    Way("in order of arrival, 2 in flight", first_come, 2),
    Way("earliest deadline, 2 in flight", earliest_deadline, 2),
    Way("earliest deadline, 1 in flight", earliest_deadline, 1),
)
BEST = WAYS[-1]


def run(folder: Path, *, quick: bool) -> Result:
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    block_s = QUICK_BLOCK_S if quick else BLOCK_S
    folder.mkdir(parents=True, exist_ok=True)
    jpeg = _picture()
    blocks: dict[str, list[list[Settled]]] = {way.name: [] for way in WAYS}
    with _server(folder / "judge_host.log") as url:
        for repetition in range(repetitions):
            for way in random.Random(repetition).sample(WAYS, len(WAYS)):
                settled = _ask(way, url, jpeg, block_s)
                blocks[way.name].append(settled)
                p50 = _percentile(settled, SAFETY, 50)
                print(f"{repetition + 1}/{repetitions} {way.name}: safety p50 {p50:.0f} ms")
    rows = [_row(way, blocks[way.name]) for way in WAYS]
    ratios = [
        _percentile(fifo, SAFETY, 50) / _percentile(ours, SAFETY, 50)
        for fifo, ours in zip(blocks[FIFO.name], blocks[BEST.name], strict=True)
    ]
    data = {
        "slo_ms": SLO_MS,
        "burst": {"every_s": BURST_S, SAFETY: SAFETIES, TASK_STATE: MONITORS},
        "blocks": {
            name: [{kind: sorted(_latencies_ms(block, kind)) for kind in SLO_MS} for block in told]
            for name, told in blocks.items()
        },
        "safety_p50_ratio": {
            "of": [FIFO.name, BEST.name],
            "per_repetition": ratios,
            "median": statistics.median(ratios),
        },
    }
    header = ["way", "safety p50", "p95 ms", f"within {SLO_MS[SAFETY]:.0f} ms"]
    header += ["monitor p50", "p95 ms", f"within {SLO_MS[TASK_STATE]:.0f} ms", "failed"]
    return Result(header, rows, data, lambda path: _plot(path, blocks, statistics.median(ratios)))


def _picture() -> bytes:
    arm = SimAdapter(images={CAMERA: (PX, PX)})
    arm.reset(TaskGoal(SCENES[SCENE], SCENE, 1))
    jpeg = arm.observe().images[CAMERA]
    arm.close()
    return jpeg


@contextmanager
def _server(log: Path) -> Iterator[str]:
    """A model server; yields its URL."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.judge_host"],
            env=os.environ | environment(modules=ROOT / "test"),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            start_new_session=True,
        )
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"the model server does not come up:\n{log.read_text()[-2000:]}")
            yield url
        finally:
            process.stdin.close()
            try:
                process.wait(UP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ask(way: Way, url: str, jpeg: bytes, seconds: float) -> list[Settled]:
    """Bursts for so long; everything that was answered, or that failed."""
    judges = [EndpointJudge(Endpoint(url, "m", timeout_s=30.0)) for _ in range(way.in_flight)]
    desk = Desk(judges, batch=1, order=way.order)
    settled: list[Settled] = []
    come = threading.Semaphore(0)

    def note(one: Settled) -> None:
        settled.append(one)
        come.release()

    asked, rng, began = 0, random.Random(1), time.monotonic()
    for burst in range(round(seconds / BURST_S)):
        time.sleep(max(0.0, began + burst * BURST_S - time.monotonic()))
        kinds = [SAFETY] * SAFETIES + [TASK_STATE] * MONITORS
        for number in rng.sample(range(len(kinds)), len(kinds)):
            kind = kinds[number]
            matter = Matter(kind, PROMPT[kind], SCENES[SCENE], ANSWERS[kind], (jpeg,), note)
            # a robot for each question, so that every one is answered and none is replaced
            desk.ask(Owed(f"{burst}.{number}", kind), matter, round(SLO_MS[kind] * 1e6))
            asked += 1
    for _ in range(asked):
        if not come.acquire(timeout=PATIENCE_S):
            break
    desk.close()
    return settled


def _latencies_ms(settled: list[Settled], kind: str) -> list[float]:
    return [1e3 * one.latency_s for one in settled if one.matter.kind == kind and one.verdict]


def _percentile(settled: list[Settled], kind: str, q: float) -> float:
    return float(np.percentile(_latencies_ms(settled, kind), q))


def _row(way: Way, blocks: list[list[Settled]]) -> list[str]:
    """Medians over the blocks with their range."""
    row = [way.name]
    for kind in SLO_MS:
        row += [_spread([_percentile(block, kind, q) for block in blocks]) for q in (50, 95)]
        shares = [
            100 * statistics.mean(one.in_time for one in block if one.matter.kind == kind)
            for block in blocks
        ]
        row.append(_spread(shares) + " %")
    failed = sum(one.verdict is None for block in blocks for one in block)
    return [*row, str(failed)]


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _plot(path: Path, blocks: dict[str, list[list[Settled]]], ratio: float) -> None:
    title = f"Deadlines first, few in flight: safety verdicts {ratio:.1f} times sooner"
    about = (
        f"{SAFETIES} safety and {MONITORS} monitor questions every {1e3 * BURST_S:.0f} ms on one "
        "model server; thin: repetitions"
    )
    with new_figure(path, title, about, panels=2) as axes:
        for axis, (kind, name) in zip(
            axes, ((SAFETY, "safety"), (TASK_STATE, "monitor")), strict=True
        ):
            for way, colour in ((FIFO, BASELINE), (BEST, OURS)):
                for block in blocks[way.name]:
                    axis.plot(*_cumulative(_latencies_ms(block, kind)), colour, lw=0.6, alpha=0.5)
                every = [ms for block in blocks[way.name] for ms in _latencies_ms(block, kind)]
                axis.plot(*_cumulative(every), colour, lw=2.2, label=way.name)
            axis.axvline(SLO_MS[kind], color="#555555", ls=":", lw=1)
            axis.text(SLO_MS[kind], 3, " objective", fontsize=8, color="#555555")
            axis.set_xlabel(f"picture to {name} answer (ms)")
            axis.set_xlim(0, 1.3 * SLO_MS[kind] if kind == TASK_STATE else 3 * SLO_MS[kind])
            axis.set_ylim(0, 100)
        axes[0].set_ylabel("answers (%)")
        axes[0].legend(frameon=False, fontsize=8, loc="lower right")


def _cumulative(values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.sort(values), 100 * np.arange(1, len(values) + 1) / len(values)
