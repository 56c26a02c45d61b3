"""Which answers of a policy a step decodes: all of them, or by slack (Wang et al., Algorithm 3).

The same questions are answered with both, in virtual time: the schedule of slots and both rules are
the ones of the engine, and what a step takes is read from a table. Two tables:

- measured: steps of the pi05 of `bench unified` (187 million random weights, float32, one thread of
  a CPU), by number of answers and positions, in CPU time;
- as in Wang et al.: a step over 128,000 positions takes 40.3 ms, four times one over 8,000 (its
  §2.2), here whatever the number of answers, since it does not say what that changes. No policy
  here has prefills that differ so much.

Robots ask for chunks at even intervals. Questions come at random times, three of four of them short
ones. Values are medians over seeds, with the least and the most.
"""

import argparse
import json
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.engine.unified import K, measured_apart, save_and_load
from bench.support.report import Result, new_figure
from kairos_ros.core.language.decoding import CHOICES, Choose, Decoding, StepTimes
from kairos_ros.core.language.schedule import LanguageSchedule
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS

ANSWERS = (1, 2, 3, 4, 6, 8, 12)
POSITIONS = (150, 600, 1200)
REPEATS = 7
SLOTS = 12
SHORT_SHARE = 0.75
DURATION_S = 600.0
TITLE = "Which answers a step decodes"

StepTable = Callable[[int, int], float]
"""Answers and positions of the longest -> seconds of a step."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Of questions."""

    length: int
    """Positions of prefill and question."""
    tokens: int
    """Of the answer."""
    wait_s: float
    """For the answer, from when it is asked."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A policy and what is asked of it."""

    name: str
    table: StepTable
    chunk_s: float
    """That a chunk takes, with its prefill."""
    robots: int
    period_s: float
    """Between two chunks of a robot."""
    short: Kind
    long: Kind
    rates_hz: tuple[float, ...]
    """Questions of all robots together."""


@dataclass(slots=True)
class Served:
    """What came of the questions of a run."""

    asked: dict[Kind, int] = field(default_factory=dict)
    in_time: dict[Kind, int] = field(default_factory=dict)
    tokens: int = 0
    decoding_s: float = 0.0

    def share(self, kind: Kind) -> float:
        return self.in_time.get(kind, 0) / max(1, self.asked.get(kind, 0))


@dataclass(slots=True)
class _Open:
    kind: Kind
    until_s: float
    said: int = 0
    first_s: float = 0.0


def serve(workload: Workload, rate_hz: float, choose: Choose, seed: int) -> Served:
    """Runs DURATION_S of virtual time."""
    drawn, served = random.Random(seed), Served()
    asks: list[tuple[float, str, Kind]] = []
    at = drawn.expovariate(rate_hz)
    while at < DURATION_S:
        kind = workload.short if drawn.random() < SHORT_SHARE else workload.long
        asks.append((at, str(drawn.randrange(workload.robots)), kind))
        at += drawn.expovariate(rate_hz)
    every_s = workload.period_s / workload.robots
    frames = [
        (number * every_s, str(number % workload.robots))
        for number in range(round(DURATION_S / every_s))
    ]
    now_s, number = 0.0, 0
    schedule, times = LanguageSchedule(SLOTS), StepTimes()
    opened: dict[Hashable, _Open] = {}
    asks.reverse()
    frames.reverse()
    while frames:
        while asks and asks[-1][0] <= now_s:
            asked_s, robot, kind = asks.pop()
            number += 1
            served.asked[kind] = served.asked.get(kind, 0) + 1
            if schedule.ask(number, robot, asked_s + kind.wait_s):
                opened[number] = _Open(kind, asked_s + kind.wait_s)
        for key in schedule.expired(now_s):
            schedule.end(key)
            del opened[key]
        if frames[-1][0] <= now_s:
            robot = frames.pop()[1]
            now_s += workload.chunk_s
            turn = schedule.frame([robot])
            for key in turn.restarted:
                opened[key].said = 0
            if turn.started:  # reads the questions
                longest = max(opened[key].kind.length for key in turn.started)
                now_s += workload.table(len(turn.started), longest)
            for key in turn.started:
                opened[key].said, opened[key].first_s = 1, now_s
        elif not schedule.answering:
            now_s = frames[-1][0]
            continue
        for _ in range(K):
            answers = [
                Decoding(
                    key, one.kind.length + one.said, one.said, one.kind.tokens,
                    one.first_s, one.until_s,
                )
                for key, one in opened.items()
                if one.said
            ]  # fmt: skip
            if not answers:
                break
            chosen = choose(answers, times, now_s)
            longest = max(one.length for one in answers if one.key in chosen)
            took_s = workload.table(len(chosen), longest) * drawn.uniform(0.95, 1.05)
            times.saw(len(chosen), longest, took_s)
            now_s += took_s
            served.decoding_s += took_s
            served.tokens += len(chosen)
            for key in chosen:
                one = opened[key]
                one.said += 1
                if one.said == one.kind.tokens:
                    schedule.end(key)
                    del opened[key]
                    if now_s <= one.until_s:
                        served.in_time[one.kind] = served.in_time.get(one.kind, 0) + 1
    return served


def interpolated(measured: dict[int, dict[int, float]]) -> StepTable:
    """measured: answers -> positions -> seconds. Linear between what was measured."""

    def step_s(answers: int, length: int) -> float:
        return _between(
            {n: _between(of, length) for n, of in measured.items()}, min(answers, max(measured))
        )

    return step_s


def _between(of: dict[int, float], at: int) -> float:
    keys = sorted(of)
    right = min(max(1, bisect_left(keys, at)), len(keys) - 1)
    low, high = keys[right - 1], keys[right]
    return max(0.0, of[low] + (of[high] - of[low]) * (at - low) / (high - low))


def as_in_wang(_answers: int, length: int) -> float:
    """Linear in the length through its two values."""
    slow, fast, long, short = 0.0403, 0.0403 / 4, 128_000, 8_000
    return fast + (slow - fast) * (length - short) / (long - short)


def run(folder: Path, quick: bool) -> Result:
    """Measures in a process of its own with one thread, then serves."""
    steps = measured_apart("bench.engine.decoding", folder)
    table = interpolated(
        {int(n): {int(at): s for at, s in of.items()} for n, of in steps["step_s"].items()}
    )
    workloads = (
        Workload(
            "pi05 on a CPU, 2 robots", table, steps["chunk_s"], 2, 6.0,
            Kind(200, 8, 8.0), Kind(440, 40, 20.0), (0.3, 1.0, 2.0, 3.0),
        ),
        Workload(
            "lengths of Wang et al., 16 robots", as_in_wang, 0.1, 16, 4.0,
            Kind(8_000, 40, 6.0), Kind(128_000, 40, 10.0), (0.5, 1.0, 2.0, 4.0),
        ),
    )  # fmt: skip
    seeds = range(2 if quick else 10)
    found = [
        (workload, rate_hz, name, [serve(workload, rate_hz, choose, seed) for seed in seeds])
        for workload in workloads
        for rate_hz in workload.rates_hz
        for name, choose in CHOICES.items()
    ]
    rows = [
        [
            workload.name,
            f"{rate_hz:g}",
            name,
            _spread([100 * one.share(workload.short) for one in runs], 1),
            _spread([100 * one.share(workload.long) for one in runs], 1),
            _spread([one.tokens / one.decoding_s for one in runs], 1),
        ]
        for workload, rate_hz, name, runs in found
    ]
    data = steps | {"rows": rows}
    return Result(HEADER, rows, data, lambda file: plot(file, found))


HEADER = [
    "workload", "questions/s", "decoding", "short in time %", "long in time %",
    "tokens/s while decoding",
]  # fmt: skip


def _spread(values: list[float], digits: int) -> str:
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def plot(file: Path, found: list[tuple[Workload, float, str, list[Served]]]) -> None:
    """Tokens per second against the rate of questions, a panel per workload."""
    workloads = list(dict.fromkeys(workload.name for workload, *_ in found))
    with new_figure(file, TITLE, "medians and spread over seeds, virtual time", 2) as panels:
        for axes, name in zip(panels, workloads, strict=True):
            for choice, colour in zip(CHOICES, (BASELINE, OURS), strict=True):
                of = [
                    (rate, [one.tokens / one.decoding_s for one in runs])
                    for workload, rate, chosen, runs in found
                    if (workload.name, chosen) == (name, choice)
                ]
                rates = [rate for rate, _ in of]
                axes.plot(rates, [median(v) for _, v in of], color=colour, marker="o", label=choice)
                lows, highs = [min(v) for _, v in of], [max(v) for _, v in of]
                axes.fill_between(rates, lows, highs, color=colour, alpha=0.15, linewidth=0)
            axes.set_title(name, fontsize=10)
            axes.set_xlabel("questions per second")
            axes.set_ylim(bottom=0)
        panels[0].set_ylabel("tokens per second while decoding")
        panels[0].legend(frameon=False)


def measured_steps(engine: Any) -> dict[str, Any]:
    """CPU seconds of steps and of a chunk, of an engine that answers questions."""
    import torch

    from kairos_ros.engine.policies.language.kv_slots import KvSlots
    from kairos_ros.engine.policies.language.prefill import Prefill
    from kairos_ros.engine.profiling import sample_request

    answering = engine.answering
    head, layers = answering._head, answering._slots._keys
    found: dict[int, dict[int, float]] = {n: {} for n in ANSWERS}
    with torch.inference_mode():
        for length in POSITIONS:
            filled = tuple(torch.randn(1, one.shape[1], length, one.shape[3]) for one in layers)
            prefill = Prefill(filled, filled, torch.ones(1, length, dtype=torch.bool))
            slots = KvSlots(prefill, max(ANSWERS), length + 1)
            for key in range(max(ANSWERS)):
                slots.store(key, prefill, 0)
            took_s: dict[int, list[float]] = {n: [] for n in ANSWERS}
            for _ in range(REPEATS):
                for n in ANSWERS:
                    took_s[n].append(_cpu_s(partial(_step, head, slots, n)))
            for n in ANSWERS:
                found[n][length] = median(took_s[n])
            print(f"steps over {length} positions are measured", flush=True)
    request = sample_request(engine.description, 0, "")
    chunk_s = median(_cpu_s(lambda: engine.infer([request])) for _ in range(3))
    return {"step_s": found, "chunk_s": chunk_s}


def _step(head: Any, slots: Any, answers: int) -> None:
    head.read(slots.batch({key: [5] for key in range(answers)}))


def _cpu_s(do: Callable[[], object]) -> float:
    start = time.process_time()
    do()
    return time.process_time() - start


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="gets measured.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kairos-decoding-") as work:
        engine, _ = save_and_load(Path(work))
    found = measured_steps(engine)
    (arguments.folder / "measured.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
