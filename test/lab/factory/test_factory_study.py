"""Planned fleets and baselines in virtual time."""

from pathlib import Path

import pytest

from kairos_ros.core.pipeline import Component
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.load_profiles import read_profiles
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.fleet.workload import WhatIf, fleet_workload
from kairos_ros.lab.factory.allocation import allocate, served
from kairos_ros.lab.factory.report import FACTORY_STUDY
from kairos_ros.lab.factory.servers import SharedServer
from kairos_ros.lab.factory.study import cells, read_factory_study
from kairos_ros.lab.factory.virtual_fleet import live
from kairos_ros.planning.workload import PlanOptions

CONFIG = Path(__file__).parents[3] / "config"


def paper(name, robots):
    path = CONFIG / "fleets" / f"paper_{name}.yaml"
    fleet = read_fleet(path, Known(adapters={"sim"}))
    return fleet_workload(
        [(path, fleet)], read_profiles([CONFIG / "profiles"]), WhatIf(robots=robots)
    )


def lived(system, robots, execution="synchronous", seconds=4.0, seed=0):
    work, cluster = paper("p4", robots)
    allocation = allocate(system, work, cluster, PlanOptions(execution=execution))
    result = live(work, allocation, execution, 0.005, seconds, 2.0, seed)
    return allocation, result.metrics()


@pytest.mark.parametrize(
    ("name", "system", "split"),
    [
        ("p4", "equal", "2:2:2:2"),
        ("p4", "weighted", "1:3:1:3"),
        ("p3", "equal", "3:0:3:2"),
        ("p1", "equal", "8:0:0:0"),
        ("p4", "gpu_per_model", "2:2:2:2"),
        ("p4", "gpu_per_robot", "8:8:8:8"),
    ],
)
def test_baselines_share_gpus_out_as_in_the_paper(name, system, split):
    work, cluster = paper(name, 32)
    assert allocate(system, work, cluster, PlanOptions()).split == split


def test_dedicated_gpus_serve_as_many_robots_as_there_are_gpus_for():
    work, cluster = paper("p4", 32)
    assert len(served(allocate("gpu_per_model", work, cluster, PlanOptions()))) == 2
    assert len(served(allocate("gpu_per_robot", work, cluster, PlanOptions()))) == 8


def test_two_robots_with_a_gpu_per_model_act_as_fast_as_the_papers():
    """Rosa §4.2: 7.4 qualified actions/s."""
    _, found = lived("gpu_per_model", 32, seconds=10.0)
    assert found["qualified_hz"] == pytest.approx(7.4, rel=0.03)


def test_a_shared_baseline_that_is_not_held_back_collapses_where_the_papers_does():
    """Rosa §4.2: 29.5 qualified actions/s with 8 robots, none with 32."""
    assert lived("equal", 8)[1]["qualified_hz"] == pytest.approx(29.5, rel=0.05)
    _, overloaded = lived("equal", 32)
    assert overloaded["qualified_hz"] == 0
    assert overloaded["system1_within_slo"] == 0


@pytest.mark.parametrize("execution", ["synchronous", "overlapped"])
def test_a_plan_keeps_its_slos_and_its_rates_when_it_is_lived(execution):
    work, cluster = paper("p4", 32)
    from kairos_ros.planning.planner import Planner

    planned = Planner(work, cluster, PlanOptions(execution=execution)).plan(explain=False)
    _, found = lived("planned", 32, execution)
    assert found["qualified_hz"] >= 0.95 * planned.value_hz
    for component in Component:
        assert found[f"{component}_within_slo"] >= 0.99


def test_the_same_seed_gives_the_same_fleet():
    assert lived("planned", 8, seconds=2.0)[1] == lived("planned", 8, seconds=2.0)[1]


def test_a_shared_server_slows_down_with_every_request_in_flight():
    """Two requests of 1 s at twice the time each, the second half a second later: 0.5 s alone, 1 s
    shared for the rest of the first, and the rest of the second alone."""
    calls, ended = [], []
    server = SharedServer(lambda n: float(n), 8, 0.0, lambda at, call: calls.append((at, call)), "")
    server.ask(0.0, ended.append)
    server.ask(0.5, ended.append)
    while calls:
        calls.sort(key=lambda one: one[0])
        at, call = calls.pop(0)
        call(at)
    assert ended == pytest.approx([1.5, 2.0])


def test_the_shipped_study_has_every_system_of_the_paper_and_the_ablations():
    study = read_factory_study(CONFIG / "studies" / "factory.yaml")
    keys = cells(study, "full")
    assert {key["fleet"] for key in keys} == {"p1", "p2", "p3", "p4", "mix2", "mix4"}
    assert len({key["system"] for key in keys}) == 9


def test_a_study_writes_table_figure_and_finding_with_what_was_assumed(tmp_path):
    study = tmp_path / "factory.yaml"
    study.write_text(
        "kind: factory\nquestion: q\nfleets: [p1]\n"
        "robots: [8]\nsystems: [planned, equal, gpu_per_model]\n"
        "warm_up_s: 1\ngoals: {shared: 2, dedicated: 12, within_slo: 0.99}\n"
        "sizes: {quick: {seeds: 1, seconds: 1, executions: [synchronous]}}\n"
    )
    told = []
    FACTORY_STUDY.run(study, tmp_path / "out", told.append, size="quick")
    finding = (tmp_path / "out" / "finding.md").read_text()
    assert "All profiles are assumed" in finding
    assert "| p1 (assumed) |" in finding
    assert "one GPU per model, on p1; goal 12x: missed" in finding
    rows = (tmp_path / "out" / "cells.csv").read_text().splitlines()
    assert len(rows) == 4
    assert "assumed" in rows[0]
    assert (tmp_path / "out" / "figure.png").stat().st_size > 10_000
