"""Workloads: the synthetic ones have the statistics that they claim; the recorded one loads."""

import math
from collections.abc import Sequence
from statistics import mean, pstdev

import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.sim.sim_engine import capacity_per_s
from kairos_ros.lab.sim.workloads import SYNTHETIC, WORKLOADS, workload
from kairos_ros.recording.runs.trace import Trace
from kairos_ros.recording.runs.trace_file import read_traces, write_traces


def horizon_changes(traces: Sequence[Trace]) -> tuple[float, float]:
    """Shares of consecutive rounds whose horizon changes by at most 10 %, and by over 100 %."""
    small = large = pairs = 0
    for trace in traces:
        for one, other in zip(trace.rounds, trace.rounds[1:], strict=False):
            change = abs(other.horizon - one.horizon) / one.horizon
            small += change <= 0.1
            large += change > 1.0
            pairs += 1
    return small / pairs, large / pairs


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_workload_has_the_statistics_that_it_states(name):
    spec = SYNTHETIC[name]
    traces = [t for seed in range(5) for t in workload(name, seed).traces]
    static = sum(math.ceil(t.actions / 10) for t in traces)
    assert static / sum(len(t.rounds) for t in traces) == pytest.approx(spec.rounds_ratio, rel=0.03)
    small, large = horizon_changes(traces)
    assert 0.69 <= small <= 0.76  # 71-74 % of consecutive rounds within 10 %
    assert 0.02 <= large <= 0.10
    assert max(r.horizon for t in traces for r in t.rounds) <= 50
    lengths = [t.actions for t in traces]
    assert mean(lengths) == pytest.approx(spec.mean_actions, rel=0.06)
    assert pstdev(lengths) / mean(lengths) == pytest.approx(spec.actions_cv, rel=0.12)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_workload_says_so_and_is_a_valid_trace_file(tmp_path, name):
    traces = workload(name, seed=3, tasks=20).traces
    assert all("synthetic" in t.policy and "synthetic" in t.instruction for t in traces)
    write_traces(tmp_path / "t.jsonl.gz", traces)
    assert tuple(read_traces(tmp_path / "t.jsonl.gz")) == traces


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, 1.3, 2.7])
def test_a_synthetic_workload_can_be_given_another_ratio_of_rounds(ratio):
    traces = workload("pi05-libero", 7, 400, ratio=ratio).traces
    static = sum(math.ceil(t.actions / 10) for t in traces)
    assert static / sum(len(t.rounds) for t in traces) == pytest.approx(ratio, rel=0.08)


def test_the_same_seed_gives_the_same_tasks_and_another_gives_others():
    assert workload("vam-bridge", 1) == workload("vam-bridge", 1)
    assert workload("vam-bridge", 1).traces != workload("vam-bridge", 2).traces


def test_load_one_asks_for_as_many_rounds_as_one_engine_can_do():
    libero = workload("pi05-libero")
    assert capacity_per_s(libero.profile) == pytest.approx(8 / 0.36)
    rounds_per_s = libero.arrival_rate(1.0) * libero.mean_static_rounds
    assert rounds_per_s == pytest.approx(8 / 0.36)


def test_the_recorded_workload_has_what_dynamic_horizons_judge_by():
    recorded = workload("metaworld")
    assert len({t.kind for t in recorded.traces}) >= 10
    assert all(r.chunk is not None for t in recorded.traces for r in t.rounds if r.horizon)


def test_an_unknown_workload_is_told_what_there_is():
    with pytest.raises(ConfigError, match=", ".join(WORKLOADS)):
        workload("pi05")
