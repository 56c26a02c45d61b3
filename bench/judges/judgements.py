"""Safety and monitor on one model: our queue in front of it, against sending everything at once.

Bursts of six monitor and two safety questions, in any order, to a model server in a process of its
own that answers in the order of arrival (judge_host.py), or to vLLM with a tiny model where
KAIROS_VLLM names the Python of an environment with it. They come as fast as keeps that
server busy for 60 % of the time, by its speed at the beginning of each repetition; objectives count
in answers, too. The ways to ask alternate within one repetition.
"""

import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.support.client_process import ClientProcess
from bench.support.peers import vllm_server
from bench.support.report import Result, new_figure
from bench.support.servers import ROOT, environment
from kairos_ros.lab.metrics.figure_style import BASELINE, FAINT_INK, OURS
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.robot.adapters.sim.sim import SimAdapter
from kairos_ros.vlm.endpoint.endpoint_judge import Endpoint, EndpointJudge
from kairos_ros.vlm.judge_threads import JudgementRequest, JudgementResult, JudgeThreads
from kairos_ros.vlm.judgement_queue import Order, Requester, earliest_deadline, first_come
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

SAFETIES, MONITORS = 2, 6
LOAD = 0.6
SLO_ANSWERS = {SAFETY: 4, TASK_STATE: 16}
"""Latency objectives, in mean times of one answer."""
PROBES = 40
ANSWERS = {SAFETY: (SAFE, UNSAFE), TASK_STATE: (ONGOING, DONE, FAILED)}
PROMPT = {SAFETY: SAFETY_PROMPT, TASK_STATE: TASK_STATE_PROMPT}
REPETITIONS, BURSTS = 6, 24
QUICK_REPETITIONS, QUICK_BURSTS = 3, 12
SCENE, CAMERA, PX = "push-v3", "corner3", 240
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
BEST = WAYS[2]


@dataclass(frozen=True, slots=True)
class Block:
    """What one way got in one repetition."""

    answer_s: float
    """Mean time of one answer, one after the other, when the repetition began."""
    results: list[JudgementResult]

    def latencies_ms(self, kind: str) -> list[float]:
        return [
            1e3 * one.latency_s for one in self.results if one.request.kind == kind and one.verdict
        ]

    def percentile_ms(self, kind: str, q: float) -> float:
        return float(np.percentile(self.latencies_ms(kind), q))

    def within(self, kind: str) -> float:
        """Share of the answers that kept their objective."""
        return statistics.mean(one.in_time for one in self.results if one.request.kind == kind)


def run(folder: Path, *, quick: bool) -> Result:
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    bursts = QUICK_BURSTS if quick else BURSTS
    folder.mkdir(parents=True, exist_ok=True)
    jpeg = picture()
    blocks: dict[str, list[Block]] = {way.name: [] for way in WAYS}
    with _server(folder / "judge_host.log") as server:
        for repetition in range(repetitions):
            answer_s = _answer_s(server, jpeg)
            for way in random.Random(repetition).sample(WAYS, len(WAYS)):
                block = Block(answer_s, _ask(way, server, jpeg, answer_s, bursts))
                blocks[way.name].append(block)
                print(
                    f"{repetition + 1}/{repetitions} {way.name}: an answer {1e3 * answer_s:.0f} ms,"
                    f" safety p50 {block.percentile_ms(SAFETY, 50):.0f} ms"
                )
    ratios = [
        fifo.percentile_ms(SAFETY, 50) / ours.percentile_ms(SAFETY, 50)
        for fifo, ours in zip(blocks[FIFO.name], blocks[BEST.name], strict=True)
    ]
    data = {
        "burst": {SAFETY: SAFETIES, TASK_STATE: MONITORS, "load": LOAD},
        "slo_answers": SLO_ANSWERS,
        "blocks": {
            name: [
                {"answer_s": block.answer_s}
                | {kind: sorted(block.latencies_ms(kind)) for kind in SLO_ANSWERS}
                for block in told
            ]
            for name, told in blocks.items()
        },
        "safety_p50_ratio": {
            "of": [FIFO.name, BEST.name],
            "per_repetition": ratios,
            "median": statistics.median(ratios),
        },
    }
    header = ["way", "safety p50 ms", "p95 ms", "in time %"]
    header += ["monitor p50 ms", "p95 ms", "in time %", "failed"]
    rows = [_row(way, blocks[way.name]) for way in WAYS]
    return Result(header, rows, data, lambda path: _plot(path, blocks, ratios))


def picture() -> bytes:
    """A JPEG of a simulated cell, as a robot's camera takes it."""
    arm = SimAdapter(images={CAMERA: (PX, PX)})
    arm.reset(TaskGoal(SCENES[SCENE], SCENE, 1))
    jpeg = arm.observe().images[CAMERA]
    arm.close()
    return jpeg


@contextmanager
def _server(log: Path) -> Iterator[Endpoint]:
    """A model server."""
    if os.environ.get(vllm_server.PYTHON):
        with ClientProcess(log, environment(), vllm_server.__name__) as vllm:
            print("vLLM starts; that takes a minute or more", flush=True)
            yield Endpoint(vllm.hear(), vllm_server.MODEL, timeout_s=30.0)
        return
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.judges.judge_host"],
            env=os.environ | environment(modules=ROOT / "test" / "support" / "judges"),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            start_new_session=True,
        )
        assert process.stdin
        assert process.stdout
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"the model server does not come up:\n{log.read_text()[-2000:]}")
            yield Endpoint(url, "m", timeout_s=30.0)
        finally:
            process.stdin.close()
            try:
                process.wait(UP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answer_s(server: Endpoint, jpeg: bytes) -> float:
    """Mean time of one answer while nobody else asks."""
    judge = EndpointJudge(server)
    answers: list[JudgementResult] = []
    judges = JudgeThreads([judge])
    for number in range(PROBES):
        done = threading.Event()

        def note(one: JudgementResult, done: threading.Event = done) -> None:
            answers.append(one)
            done.set()

        judges.ask(Requester(str(number), SAFETY), _request(SAFETY, jpeg, note), 1)
        done.wait(PATIENCE_S)
    judges.close()
    return statistics.mean(one.latency_s for one in answers[PROBES // 4 :])


def _request(kind: str, jpeg: bytes, note: Callable[[JudgementResult], None]) -> JudgementRequest:
    return JudgementRequest(kind, PROMPT[kind], SCENES[SCENE], ANSWERS[kind], (jpeg,), note)


def _ask(
    way: Way, server: Endpoint, jpeg: bytes, answer_s: float, bursts: int
) -> list[JudgementResult]:
    """So many bursts; everything that was answered, or that failed."""
    judges = [EndpointJudge(server) for _ in range(way.in_flight)]
    threads = JudgeThreads(judges, batch=1, order=way.order)
    results: list[JudgementResult] = []
    come = threading.Semaphore(0)

    def note(one: JudgementResult) -> None:
        results.append(one)
        come.release()

    kinds = [SAFETY] * SAFETIES + [TASK_STATE] * MONITORS
    every_s = len(kinds) * answer_s / LOAD
    asked, rng, began = 0, random.Random(1), time.monotonic()
    for burst in range(bursts):
        time.sleep(max(0.0, began + burst * every_s - time.monotonic()))
        for number in rng.sample(range(len(kinds)), len(kinds)):
            kind = kinds[number]
            # a robot for each question, so that every one is answered and none is replaced
            requester = Requester(f"{burst}.{number}", kind)
            slo_ns = round(SLO_ANSWERS[kind] * answer_s * 1e9)
            threads.ask(requester, _request(kind, jpeg, note), slo_ns)
            asked += 1
    for _ in range(asked):
        if not come.acquire(timeout=PATIENCE_S):
            break
    threads.close()
    return results


def _row(way: Way, blocks: list[Block]) -> list[str]:
    """Medians over the repetitions with their range."""
    row = [way.name]
    for kind in SLO_ANSWERS:
        row += [_spread([block.percentile_ms(kind, q) for block in blocks]) for q in (50, 95)]
        row.append(_spread([100 * block.within(kind) for block in blocks]))
    failed = sum(one.verdict is None for block in blocks for one in block.results)
    return [*row, str(failed)]


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _plot(path: Path, blocks: dict[str, list[Block]], ratios: list[float]) -> None:
    ratio = statistics.median(ratios)
    title = f"Deadlines first, two in flight: safety verdicts come {ratio:.1f} times sooner"
    about = (
        f"bursts of {SAFETIES} safety and {MONITORS} monitor questions keep one model server "
        f"{LOAD:.0%} busy; thin: repetitions"
    )
    with new_figure(path, title, about, panels=2) as axes:
        for axis, kind, name in zip(axes, SLO_ANSWERS, ("safety", "monitor"), strict=True):
            for way, colour in ((FIFO, BASELINE), (BEST, OURS)):
                told = [
                    [ms / 1e3 / block.answer_s for ms in block.latencies_ms(kind)]
                    for block in blocks[way.name]
                ]
                for one in told:
                    axis.plot(*_cumulative(one), color=colour, lw=0.6, alpha=0.6)
                every = [ms for one in told for ms in one]
                axis.plot(*_cumulative(every), color=colour, lw=2.2, label=way.name)
            axis.axvline(SLO_ANSWERS[kind], color=FAINT_INK, ls=":", lw=1)
            axis.text(SLO_ANSWERS[kind], 94, "objective ", fontsize=8, color=FAINT_INK, ha="right")
            axis.set_xlabel(f"{name}: latency (mean times of one answer)")
            axis.set_xlim(0, 2.5 * SLO_ANSWERS[kind] if kind == SAFETY else 1.3 * SLO_ANSWERS[kind])
            axis.set_ylim(0, 100)
        axes[0].set_ylabel("answers (%)")
        axes[1].legend(frameon=False, fontsize=8, loc="center right")


def _cumulative(values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.sort(values), 100 * np.arange(1, len(values) + 1) / len(values)
