"""Named workloads: recorded tasks with the engine that they are served by.

Five are SYNTHETIC: drawn from a seed, on assumed engines. Nothing in them was measured, and but for
their names and chunks of 50 actions they are our assumptions: above all how many rounds a dynamic
horizon saves, on which every gain of it in these workloads depends. Dai et al. state no such ratio
per workload (only that "62%-87% of rounds" could execute "up to 2.8x more actions", §1). That most
consecutive rounds are alike and few differ by more than 100 % is as in its Figure 10, which gives
52.3 to 85.4 % and 4.9 to 10.1 % over all of its workloads. `metaworld` was recorded.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.execution.latency import lead_actions
from kairos_ros.core.profile import EngineProfile
from kairos_ros.host.share import share
from kairos_ros.lab.sim.sim_engine import NO_CAP, capacity_per_s, linear_profile
from kairos_ros.recording.runs.trace import Trace, TraceRound
from kairos_ros.recording.runs.trace_file import read_traces

RATE_HZ = 30.0
CHUNK = 50
STATIC_H = 10
"""The baseline's horizon; the workloads state dynamic horizons relative to it."""
KINDS = 10
NETWORK_NS = 5_000_000
MARGIN_NS = 30_000_000
LOW = (8.0, 12.0)
HIGH = (26.0, 50.0)
"""Horizons of the two regimes: contact and free motion."""
LEAST_SHARE, GREATEST_SHARE = 0.0001, 0.98
BISECTIONS = 12
RATIO_WITHIN = 0.05
"""How another ratio of rounds is found."""
BETWEEN_KINDS = 0.6
"""Share of the variance of the logarithm of task lengths that lies between kinds of task."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """What a synthetic workload is drawn from."""

    latency: str
    """Of the assumed engine, milliseconds per batch + per request."""
    batch_cap: int
    mean_actions: float
    """Of a task."""
    actions_cv: float
    """Standard deviation over mean of the same."""
    rounds_ratio: float
    """Rounds under static:10 over rounds under the dynamic horizon: an assumption."""
    high_share: float
    """Share of rounds in the high regime, so that `rounds_ratio` comes out."""
    ups: float
    """Share of rounds that change from the low to the high regime."""
    drifts: float
    """Share of rounds that change by 15 to 60 % within a regime."""


SYNTHETIC = {
    "pi05-libero": Synthetic("80+35b", 8, 240, 0.5, 1.84, 0.441, 0.050, 0.29),
    "pi05-bimanual": Synthetic("80+35b", 8, 400, 0.35, 1.39, 0.188, 0.045, 0.33),
    "smolvla-meta": Synthetic("50+15b", 16, 150, 0.6, 1.72, 0.416, 0.050, 0.29),
    "smolvla-libero": Synthetic("50+15b", 16, 240, 0.5, 1.26, 0.130, 0.035, 0.40),
    "vam-bridge": Synthetic("350+150b", 4, 180, 0.8, 1.56, 0.299, 0.050, 0.31),
}
RECORDED = {"metaworld": ("traces/metaworld_sample.jsonl.gz", "80+35b", 8)}
"""Trace file, and the engine assumed for it: one the size of pi05, since the policy that the
traces were recorded with is too small to be contended for."""
WORKLOADS = (*SYNTHETIC, *RECORDED)


@dataclass(frozen=True, slots=True)
class Workload:
    """Traces, and the engine that serves them."""

    name: str
    traces: tuple[Trace, ...]
    profile: EngineProfile
    static: str
    """Horizon policy of the baseline."""
    dynamic: str
    """Horizon policy of ours."""

    @property
    def mean_static_rounds(self) -> float:
        """Rounds of a task under the static horizon."""
        h = int(self.static.removeprefix("static:"))
        return sum(math.ceil(t.actions / h) for t in self.traces) / len(self.traces)

    def arrival_rate(self, load: float, batch_cap: int = NO_CAP) -> float:
        """Tasks per second that ask `load` times what one engine can do, static horizon."""
        return load * capacity_per_s(self.profile, batch_cap) / self.mean_static_rounds


def workload(
    name: str,
    seed: int = 0,
    tasks: int = 200,
    traces: Path | None = None,
    ratio: float | None = None,
) -> Workload:
    """One of `WORKLOADS`. seed, tasks: of synthetic ones. traces: another file of recorded ones.

    ratio: of a synthetic one, another `Synthetic.rounds_ratio`. Raises ConfigError for an unknown
    name, an unusable file or a ratio that cannot be.
    """
    if name in SYNTHETIC:
        if tasks < 1:
            raise ConfigError(f"a workload has at least 1 task, not {tasks}")
        spec = SYNTHETIC[name] if ratio is None else _with_ratio(name, ratio)
        profile = linear_profile(spec.latency, spec.batch_cap, policy_id=f"synthetic-{name}")
        drawn = synthetic_traces(name, spec, seed, tasks)
        return Workload(name, drawn, profile, f"static:{STATIC_H}", "recorded")
    if name in RECORDED:
        file, latency, cap = RECORDED[name]
        found = tuple(t for t in read_traces(traces or share() / "config" / file) if t.actions)
        profile = linear_profile(latency, cap, policy_id=found[0].policy)
        return Workload(name, found, profile, f"static:{STATIC_H}", "tail_agreement")
    raise ConfigError(f"unknown workload {name!r}; known are {', '.join(WORKLOADS)}")


@cache
def _with_ratio(name: str, ratio: float) -> Synthetic:
    """The workload with the share of long rounds that gives another `rounds_ratio`."""
    own = SYNTHETIC[name]
    low, high = LEAST_SHARE, GREATEST_SHARE
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        rarer = min(1.0, middle / own.high_share, (1 - middle) / (1 - own.high_share))
        spec = replace(own, rounds_ratio=ratio, high_share=middle, ups=own.ups * rarer)
        if _measured_ratio(name, spec) < ratio:
            low = middle
        else:
            high = middle
    if abs(_measured_ratio(name, spec) - ratio) > RATIO_WITHIN * ratio:
        raise ConfigError(f"{name} cannot have {ratio} times the rounds; 1.0 to 2.7 are possible")
    return spec


def _measured_ratio(name: str, spec: Synthetic) -> float:
    traces = [t for seed in range(4) for t in synthetic_traces(name, spec, seed, 200)]
    static = sum(math.ceil(t.actions / STATIC_H) for t in traces)
    return static / sum(len(t.rounds) for t in traces)


def synthetic_traces(name: str, spec: Synthetic, seed: int, tasks: int) -> tuple[Trace, ...]:
    """`tasks` traces without chunks; under replay every round executes its whole horizon."""
    draw = random.Random(f"{seed}/{name}")
    sigma2 = math.log1p(spec.actions_cv**2)
    middle = math.log(spec.mean_actions) - sigma2 / 2
    kinds = _spread_evenly(middle, math.sqrt(BETWEEN_KINDS * sigma2))
    within = math.sqrt((1 - BETWEEN_KINDS) * sigma2)
    latency = linear_profile(spec.latency, spec.batch_cap).latency_s(1)
    lead = lead_actions(
        round(latency * 1e9) + NETWORK_NS, MARGIN_NS, round(1e9 / RATE_HZ), 2 * CHUNK
    )
    traces = []
    for i in range(tasks):
        kind = i % KINDS
        actions = max(2 * STATIC_H, round(draw.lognormvariate(kinds[kind], within)))
        rounds = _rounds(_horizons(spec, draw), actions, lead)
        traces.append(
            Trace(
                name=f"{name}-{i:04}",
                kind=f"{name} {kind}",
                instruction="synthetic",
                seed=i,
                control_rate_hz=RATE_HZ,
                chunk_size=CHUNK,
                action_dim=1,
                policy=f"synthetic-{name}",
                horizon_policy="synthetic two-regime path",
                success=True,
                duration_s=actions / RATE_HZ,
                rounds=rounds,
            )
        )
    return tuple(traces)


def _spread_evenly(middle: float, sigma: float) -> list[float]:
    """Logarithms of the kinds' median lengths: with this mean and standard deviation."""
    offsets = [(2 * k + 1 - KINDS) / KINDS for k in range(KINDS)]
    scale = math.sqrt(sum(o * o for o in offsets) / KINDS)
    return [middle + sigma * o / scale for o in offsets]


def _horizons(spec: Synthetic, draw: random.Random) -> Iterator[int]:
    """Endless: horizon after horizon of one task."""
    up = spec.ups / (1 - spec.high_share)
    down = spec.ups / spec.high_share
    high = draw.random() < spec.high_share
    level = draw.uniform(*(HIGH if high else LOW))
    while True:
        yield min(CHUNK, max(1, round(level)))
        bounds = HIGH if high else LOW
        chance = draw.random()
        if chance < (down if high else up):
            high = not high
            level = draw.uniform(*(HIGH if high else LOW))
        elif draw.random() < spec.drifts:
            factor = 1 + draw.choice((-1, 1)) * draw.uniform(0.15, 0.6)
            level = min(bounds[1], max(bounds[0], level * factor))


def _rounds(horizons: Iterator[int], actions: int, lead: int) -> tuple[TraceRound, ...]:
    rounds: list[TraceRound] = []
    executed = asked_at = 0
    while executed < actions:
        horizon = next(horizons)
        count = min(horizon, actions - executed)
        rounds.append(TraceRound(len(rounds) + 1, asked_at, asked_at, horizon, count))
        executed += count
        asked_at = executed - min(lead, horizon // 2, count)
    return tuple(rounds)
