"""Recorded workloads: every horizon policy is replayed from its own traces."""

from pathlib import Path

import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.share import share
from kairos_ros.lab.sim.recorded import TRACES, recorded, recorded_traces, traces_version
from kairos_ros.lab.study.cell import Cell
from kairos_ros.lab.study.simulated import run_fleet
from kairos_ros.recording.runs.trace import Trace, TraceRound
from kairos_ros.recording.runs.trace_file import write_traces
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

SHIPPED = Path(share() / "models" / "metaworld_flow")


def trace(name, horizon_policy, horizons, seed=1):
    rounds, executed = [], 0
    for number, h in enumerate(horizons, 1):
        rounds.append(TraceRound(number, executed, executed, h, h))
        executed += h
    return Trace(
        name=f"{name} {seed} {horizon_policy}",
        kind=name,
        instruction=name,
        seed=seed,
        control_rate_hz=30.0,
        chunk_size=50,
        action_dim=4,
        policy="some-policy",
        horizon_policy=horizon_policy,
        success=True,
        duration_s=executed / 30,
        rounds=tuple(rounds),
    )


@pytest.fixture
def folder(tmp_path):
    write_traces(
        tmp_path / TRACES,
        [
            trace("push", "static:tuned", [10, 10, 10, 10]),
            trace("push", "confidence:t=0.1", [20, 15]),
        ],
    )
    return tmp_path


def test_a_horizon_policy_is_replayed_from_its_own_traces(folder):
    def rounds(horizon):
        cell = Cell(policy=str(folder), horizon=horizon, tasks=1)
        return [r.executed for r in run_fleet(cell).rounds]

    assert rounds("static:tuned") == [10, 10, 10, 10]
    assert rounds("confidence") == [20, 15]


def test_every_horizon_policy_is_offered_the_load_of_the_baseline(folder):
    # 4 rounds a task under static:tuned; the engine does 8 requests in 80 + 8 * 35 = 360 ms
    assert recorded(folder, "pi05").arrival_rate(1.8) == pytest.approx(1.8 * (8 / 0.36) / 4)


def test_a_horizon_without_traces_is_named_with_those_there_are(folder):
    with pytest.raises(ConfigError, match=r"'calibrated', only of static:tuned, confidence:t=0.1"):
        recorded(folder, "pi05").of("calibrated")


def test_a_policy_without_traces_is_told_how_to_record_them(tmp_path):
    with pytest.raises(ConfigError, match="kairos trace record"):
        traces_version(tmp_path)


def test_horizon_policies_with_other_tasks_cannot_be_compared(folder):
    write_traces(
        folder / TRACES,
        [trace("push", "static:tuned", [10]), trace("push", "static:10", [10], seed=2)],
    )
    with pytest.raises(ConfigError, match="traces of the same tasks"):
        recorded_traces(folder)


def test_traces_of_another_policy_than_the_folders_are_refused(folder):
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ConfigError, match="holds another one; record its own with"):
        recorded_traces(folder)


def test_the_shipped_policy_has_six_hundred_traces_of_twelve_tasks_under_each_horizon_policy():
    traces = recorded_traces(SHIPPED)
    assert {"static:tuned", "static:10", "tail_agreement", "calibrated"} <= set(traces)
    assert sum(map(len, traces.values())) >= 600
    for of in traces.values():
        assert {t.kind for t in of} == set(SCENES)
