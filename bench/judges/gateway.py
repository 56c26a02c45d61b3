"""Orders and dispatches of `kairos gateway` before two real servers of a language model.

The robots of `kairos study gateway` (6 monitors, 2 safety cameras and a planner each) ask two
processes of llama.cpp with SmolLM2 (135 M parameters, one CPU thread each) through the command
`kairos gateway`, in real time. It is scaled to a CPU: calls have a 64th of the study's tokens, a
planner's objectives are three eighths as long, and all times are about twice as long. There are as
many robots as ask for 80 % and 130 % of what the servers answered when the run began; every
repetition measures that again and stretches times by it. The ways alternate within one repetition
and get the same questions. Latencies are in % of their objectives.
"""

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench.support.client_process import ClientProcess
from bench.support.peers.language_server import MODEL, weights
from bench.support.report import Result, new_figure
from bench.support.servers import environment
from kairos_ros.core.calls.call import Caller, caller_headers
from kairos_ros.core.pipeline import Component
from kairos_ros.host.share import share
from kairos_ros.lab.gateway.study import GatewayStudy, read_gateway_study
from kairos_ros.lab.gateway.virtual_site import Asker, System
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS

SERVERS, SLOTS = 2, 8
PLACES = 2
"""Of each server at the gateway; two calls keep one thread busy."""
TOKENS = 1 / 64
PLANNED = {"system2": 3.0, "check": 1.0, "replan": 2.0}
"""Objectives, s before the stretch, so that a block of some seconds is long enough for them."""
STRETCH = 2.0
"""About, of all times: exactly so much that a whole number of robots is the load."""
LOADS, REPETITIONS, SECONDS = (0.8, 1.3), 3, 6.0
QUICK_LOADS, QUICK_REPETITIONS, QUICK_SECONDS = (1.3,), 1, 4.0
WARM_UP_S, CAPACITY_S = 1.5, 6.0
WORDS = ("arm", "puck", "drawer", "door", "button", "window", "handle", "shelf", "goal", "wall")


@dataclass(slots=True)
class Tally:
    """Of one component in one block."""

    due: int = 0
    in_time: int = 0
    latency: list[float] = field(default_factory=list)
    """Of the calls that were answered, as shares of the objective."""


def run(folder: Path, *, quick: bool) -> Result:
    weights()
    study = read_gateway_study(share() / "config" / "studies" / "gateway.yaml")
    askers = _scaled(study)
    loads = QUICK_LOADS if quick else LOADS
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    seconds = QUICK_SECONDS if quick else SECONDS
    folder.mkdir(parents=True, exist_ok=True)
    env = environment()
    blocks: dict[tuple[float, str], list[dict[str, Tally]]] = defaultdict(list)
    with ExitStack() as stack:
        urls = [stack.enter_context(_language_server(folder, env, i)) for i in range(SERVERS)]
        gateways = {
            one.name: stack.enter_context(_gateway(folder, env, one, urls)) for one in study.systems
        }
        answered = [asyncio.run(_capacity(gateways[study.default], askers))]
        robots = {load: _robots(load, answered[0], askers) for load in loads}
        for repetition in range(repetitions):
            print(f"the servers answer {answered[-1]:.1f} calls/s", flush=True)
            for load, count in robots.items():
                stretch = count * _calls_per_s(askers) / (load * answered[-1])
                order = random.Random(f"{repetition} {load}")
                for system in order.sample(study.systems, len(study.systems)):
                    url = gateways[system.name]
                    site = _Site(askers, system, url, stretch, seconds)
                    tallies = asyncio.run(site.run(count, repetition))
                    blocks[load, system.name].append(tallies)
                    print(f"{repetition + 1}/{repetitions} load {load:.0%}, {system.name}: "
                          f"{100 * _kept(tallies):.0f} % in time", flush=True)  # fmt: skip
            answered.append(asyncio.run(_capacity(gateways[study.default], askers)))
        print(f"the servers answer {answered[-1]:.1f} calls/s at the end")
    names = [name for name in askers if askers[name].per_robot]
    header = ["load %", "robots", "way", "in time %", *(f"{name} %" for name in names)]
    header += [f"{name} p{q} %" for name in names for q in (50, 99)]
    rows = [
        [f"{100 * load:.0f}", f"{robots[load]}", *_row(one.name, blocks[load, one.name], names)]
        for load in loads
        for one in study.systems
    ]
    data = {
        "calls_per_s": answered,
        "robots": robots,
        "objectives_s": {name: one.slo_s for name, one in askers.items()},
        "tokens": {name: [one.prompt, one.output] for name, one in askers.items()},
        "seconds_per_block": seconds,
        "blocks": [
            {"load": load, "way": way, "repetition": number}
            | {
                name: {"due": one.due, "in_time": one.in_time, "latency": one.latency}
                for name, one in tallies.items()
            }
            for (load, way), told in blocks.items()
            for number, tallies in enumerate(told)
        ],
    }
    return Result(header, rows, data, lambda path: _plot(path, study, blocks, max(loads)))


def _scaled(study: GatewayStudy) -> dict[str, Asker]:
    return {
        name: one.model_copy(
            update={
                "prompt": max(2.0, one.prompt * TOKENS),
                "output": max(1.0, one.output * TOKENS),
                "slo_s": PLANNED.get(name, one.slo_s),
            }
        )
        for name, one in study.components.items()
    }


def _rates(askers: Mapping[str, Asker]) -> dict[str, float]:
    """Calls of each component that one robot makes per second, before the stretch."""
    rates = {name: one.per_robot / one.period_s for name, one in askers.items()}
    for name, one in askers.items():
        for after, chance in one.then.items():
            rates[after] += chance * rates[name]
    return rates


def _calls_per_s(askers: Mapping[str, Asker]) -> float:
    """That one robot asks, before the stretch."""
    return sum(_rates(askers).values())


def _robots(load: float, answered_per_s: float, askers: Mapping[str, Asker]) -> int:
    return max(1, round(STRETCH * load * answered_per_s / _calls_per_s(askers)))


@contextmanager
def _language_server(folder: Path, env: Mapping[str, str], number: int) -> Iterator[str]:
    log = folder / f"language_server_{number}.log"
    arguments = ("--slots", SLOTS, "--bare")
    with ClientProcess(log, env, "bench.support.peers.language_server", *arguments) as server:
        yield server.hear()


@contextmanager
def _gateway(
    folder: Path, env: Mapping[str, str], system: System, urls: Sequence[str]
) -> Iterator[str]:
    """Yields its URL."""
    places = PLACES if system.obligations_first else system.places
    log = folder / f"gateway {system.name}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from kairos_ros.start import kairos; kairos()"),
                *("gateway", *urls, "--listen", "127.0.0.1:0", "--places", str(places)),
                *("--order", system.order, "--dispatch", system.dispatch),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | env,
            start_new_session=True,
        )
        try:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"a gateway does not come up:\n{log.read_text()[-2000:]}")
            url = line.split()[1]
            while httpx.get(url.removesuffix("v1") + "health").status_code != 200:
                time.sleep(0.1)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _request(asker: Asker, rng: random.Random) -> dict[str, Any]:
    """A question of about as many tokens as the component's have."""
    words = rng.choices(WORDS, k=max(2, round(asker.prompt * rng.uniform(0.8, 1.2))))
    tokens = 1 + round(rng.expovariate(1.0) * (asker.output - 1))
    message = {"role": "user", "content": " ".join(words)}
    # llama.cpp's own field: the answer is as long as it was drawn
    return {"model": MODEL, "messages": [message], "max_tokens": tokens, "ignore_eos": True}


async def _capacity(url: str, askers: Mapping[str, Asker]) -> float:
    """Calls of the mix that the servers answer per second, while two wait for each of them."""
    rng = random.Random(0)
    rates = list(_rates(askers).values())
    ends = time.monotonic() + CAPACITY_S
    answered = 0

    async def ask_on(client: httpx.AsyncClient, robot: int) -> None:
        nonlocal answered
        while time.monotonic() < ends:
            (asker,) = rng.choices(list(askers.values()), rates)
            # as safety, so that both places of each server are taken
            headers = caller_headers(Caller(f"{robot}", Component.SAFETY), 0)
            response = await client.post("/chat/completions", json=_request(asker, rng),
                                         headers=headers)  # fmt: skip
            response.raise_for_status()
            answered += 1

    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        began = time.monotonic()
        await asyncio.gather(*(ask_on(client, i) for i in range(2 * SERVERS * PLACES)))
        return answered / (time.monotonic() - began)


class _Site:
    """Robots of one block, in real time."""

    def __init__(
        self, askers: Mapping[str, Asker], system: System, url: str, stretch: float, seconds: float
    ) -> None:
        self._askers, self._system, self._url = askers, system, url
        self._stretch, self._seconds = stretch, seconds
        self._tallies = {name: Tally() for name in askers}
        self._counted: set[asyncio.Task[None]] = set()
        """Calls that count and have no end yet."""

    async def run(self, robots: int, seed: int) -> dict[str, Tally]:
        """Asks until all calls that count are answered or late."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=60.0, limits=limits) as client:
            self._client = client
            self._from = time.monotonic() + WARM_UP_S
            self._until = self._from + self._seconds
            seats = [
                asyncio.create_task(
                    self._seat(name, f"{robot}.{seat}", f"{seed} {name} {robot} {seat}")
                )
                for name, asker in self._askers.items()
                for robot in range(robots)
                for seat in range(asker.per_robot)
            ]
            await asyncio.sleep(self._until - time.monotonic())
            slowest = max(one.slo_s for one in self._askers.values()) * self._stretch
            while self._counted and time.monotonic() < self._until + slowest:
                await asyncio.sleep(0.05)
            for task in seats:
                task.cancel()
            await asyncio.gather(*seats, return_exceptions=True)
        return self._tallies

    async def _seat(self, name: str, robot: str, seed: str) -> None:
        """One camera, monitor or planner: a question per period, unless the last one is open."""
        rng, asker = random.Random(seed), self._askers[name]
        period_s = asker.period_s * self._stretch
        next_s = self._from - WARM_UP_S + rng.uniform(0, period_s)
        open_: asyncio.Task[None] | None = None
        number = 0
        try:
            while True:
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
                next_s += period_s
                number += 1
                if open_ is not None and not open_.done():
                    self._tallies[name].due += self._counts()
                    continue
                workflow = f"{robot}/{name}/{number}"
                open_ = self._begin(name, robot, workflow, "", rng)
        finally:
            if open_ is not None:
                open_.cancel()

    def _counts(self) -> bool:
        return self._from <= time.monotonic() < self._until

    def _begin(
        self, name: str, robot: str, workflow: str, upstream: str, rng: random.Random
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._ask(name, robot, workflow, upstream, rng))
        if self._counts():
            self._counted.add(task)
            task.add_done_callback(self._counted.discard)
        return task

    async def _ask(
        self, name: str, robot: str, workflow: str, upstream: str, rng: random.Random
    ) -> None:
        asker, counts, tally = self._askers[name], self._counts(), self._tallies[name]
        slo_s = asker.slo_s * self._stretch
        hides = name == Component.SAFETY and not self._system.obligations_first
        component = "(safety)" if hides else name
        headers = caller_headers(Caller(robot, component, "", workflow, upstream), int(slo_s * 1e9))
        began = time.monotonic()
        tally.due += counts
        response = await self._client.post("/chat/completions", json=_request(asker, rng),
                                           headers=headers)  # fmt: skip
        took_s = time.monotonic() - began
        if response.status_code != 200:
            return
        if counts:
            tally.in_time += took_s <= slo_s
            tally.latency.append(took_s / slo_s)
        for after, chance in asker.then.items():
            if rng.random() < chance:
                await self._begin(after, robot, workflow, component, rng)


def _kept(tallies: Mapping[str, Tally]) -> float:
    due = sum(one.due for one in tallies.values())
    return sum(one.in_time for one in tallies.values()) / max(1, due)


def _row(way: str, told: Sequence[dict[str, Tally]], names: Sequence[str]) -> list[str]:
    """Shares: medians over the repetitions with their range; latencies: of all of them together."""
    row = [way, _spread([100 * _kept(one) for one in told])]
    row += [_spread([100 * _kept({name: one[name]}) for one in told]) for name in names]
    for name in names:
        every = [share for one in told for share in one[name].latency]
        row += [f"{100 * np.percentile(every, q):.0f}" if every else "–" for q in (50, 99)]
    return row


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _plot(
    path: Path,
    study: GatewayStudy,
    blocks: Mapping[tuple[float, str], Sequence[dict[str, Tally]]],
    load: float,
) -> None:
    names = [name for name, one in study.components.items() if one.per_robot]
    kept = {
        one.name: [
            100 * statistics.median(_kept({name: told[name]}) for told in blocks[load, one.name])
            for name in names
        ]
        for one in study.systems
    }
    title = f"Objectives kept under {load:.0%} of what two real servers answer"
    about = "medians of the repetitions; llama.cpp with SmolLM2, one CPU thread each"
    with new_figure(path, title, about) as axis:
        where = np.arange(len(names))
        width = 0.8 / len(kept)
        for number, (way, shares) in enumerate(kept.items()):
            baseline = way == study.systems[0].name
            colour = BASELINE if baseline else OURS if way == study.default else None
            axis.bar(where + number * width, shares, width, label=way, color=colour)
        axis.set_xticks(where + 0.4 - width / 2, names)
        axis.set_ylabel("answers in time (% of what was due)")
        axis.legend(frameon=False, fontsize=6, ncols=2)
