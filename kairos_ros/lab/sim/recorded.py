"""Recorded workloads: traces of a policy under each horizon policy, on assumed engines.

A horizon policy is replayed from the traces that were recorded under it, the baseline from its own
(Dai et al. §5.1). The shipped policies are too small to be contended for, so the engines are
ASSUMED: latencies and batch caps of models that are not here. Nothing of them was measured.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import TUNED
from kairos_ros.core.profile import EngineProfile
from kairos_ros.engine.policies.policy_source import may_hold
from kairos_ros.lab.sim.sim_engine import NO_CAP, capacity_per_s, linear_profile
from kairos_ros.recording.runs.trace import Trace
from kairos_ros.recording.runs.trace_file import read_traces

TRACES = "traces.jsonl.gz"
"""In the policy folder; `kairos trace record` writes it."""
ENGINES = {"pi05": ("80+35b", 8), "smolvla": ("50+15b", 16), "vam": ("350+150b", 4)}
"""Assumed: milliseconds per batch + per request, largest batch."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The traces of one policy, and the engine assumed to serve it."""

    traces: Mapping[str, tuple[Trace, ...]]
    """By horizon policy; each holds the same tasks in the same order."""
    profile: EngineProfile

    def of(self, horizon: str) -> tuple[Trace, ...]:
        """Recorded under `horizon`: its whole name, or, where one only has it, its kind."""
        found = [h for h in self.traces if h == horizon] or [
            h for h in self.traces if h.partition(":")[0] == horizon
        ]
        if len(found) != 1:
            raise ConfigError(
                f"there are no traces of horizon {horizon!r}, only of {', '.join(self.traces)}; "
                "record them with 'kairos trace record'"
            )
        return self.traces[found[0]]

    def arrival_rate(self, load: float, batch_cap: int = NO_CAP) -> float:
        """Tasks per second that ask `load` times what one engine can do, under static:tuned."""
        baseline = self.of(TUNED)
        rounds = sum(len(trace.rounds) for trace in baseline) / len(baseline)
        return load * capacity_per_s(self.profile, batch_cap) / rounds


def recorded(folder: Path, engine: str) -> Recorded:
    """Raises ConfigError for an unknown engine, and where no traces were recorded."""
    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}; assumed are {', '.join(ENGINES)}")
    traces = recorded_traces(folder)
    latency, cap = ENGINES[engine]
    some = next(iter(traces.values()))[0]
    return Recorded(traces, linear_profile(latency, cap, policy_id=some.policy))


def traces_version(folder: Path) -> str:
    """Changes with the recorded traces. Raises ConfigError where there are none."""
    file = folder / TRACES
    if not file.is_file():
        raise ConfigError(
            f"{file} is not there; record the traces of this policy with 'kairos trace record "
            f"{folder}'"
        )
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def recorded_traces(folder: Path) -> Mapping[str, tuple[Trace, ...]]:
    """By horizon policy, the same tasks in the same order. Raises ConfigError where there are none,
    where the tasks are not the same, and where they are of another policy than the folder's."""
    return _read(folder / TRACES, traces_version(folder))


@lru_cache(maxsize=2)
def _read(file: Path, version: str) -> Mapping[str, tuple[Trace, ...]]:
    found: dict[str, list[Trace]] = {}
    for trace in read_traces(file):
        found.setdefault(trace.horizon_policy, []).append(trace)
    tasks = {h: [(t.kind, t.seed) for t in of] for h, of in found.items()}
    if not found or len(set(map(tuple, tasks.values()))) > 1:
        raise ConfigError(f"{file}: every horizon policy must have traces of the same tasks")
    for policy in {trace.policy for of in found.values() for trace in of}:
        if not may_hold(file.parent, policy):
            raise ConfigError(
                f"{file} has traces of policy {policy}, and its folder holds another one; record "
                f"its own with 'kairos trace record {file.parent}'"
            )
    return {h: tuple(of) for h, of in found.items()}
