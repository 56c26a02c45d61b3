"""From a plan to engines and routes, and to a changed fleet with as little change as can be."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.bringup.fleet import fleet_plan
from kairos_ros.bringup.planned.change import PlannedFleet, change, planned_fleet
from kairos_ros.core.errors import ConfigError
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.deployment import devices, like_running, served_plan
from kairos_ros.fleet.load_profiles import read_profiles
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.fleet.workload import WhatIf, fleet_workload
from kairos_ros.planning.planner import Planner
from kairos_ros.planning.workload import PlanOptions

CONFIG = Path(__file__).parents[2] / "config"
EMULATED = CONFIG / "fleets" / "emulated.yaml"


def planned(folder, gpus=3, swing=3, drive=2, running=None, path=EMULATED):
    """The shipped planned fleet with other numbers."""
    data = yaml.safe_load(path.read_text())
    data["server_cluster"]["num_servers"] = gpus
    for group in data["robot_fleet"]:
        group["num_robots"] = {"swing": swing, "drive": drive}[group["task"]]
        group["params_file"] = str(CONFIG / "arm.yaml")
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    fleet = read_fleet(file, Known(("sim",)))
    profiles = read_profiles([CONFIG / "profiles"])
    workload, cluster = fleet_workload([(file, fleet)], profiles, WhatIf())
    plan = Planner(workload, cluster, PlanOptions()).plan(explain=False)
    if running:
        plan = like_running(plan, fleet, running.served)
    served = served_plan(file, fleet, plan, devices(plan, 0, "auto"))
    return PlannedFleet(str(file), tuple(fleet_plan(fleet, folder, served=served)), served)


def test_every_robot_of_the_file_has_an_engine_of_its_task_s_model_and_a_rate(tmp_path) -> None:
    one = planned(tmp_path)
    assert one.served.fleet == "fleet"
    assert {e.name: len(e.robots) for e in one.served.engines} == {
        "gpu0/emulated-swing": 2,
        "gpu1/emulated-swing": 1,
        "gpu2/emulated-drive": 2,
    }
    assert one.robots == one.served.routes.keys() == one.served.periods_s.keys()
    assert all(robot.startswith(engine.rpartition("-")[2]) for robot, engine
               in one.served.routes.items())  # fmt: skip
    asks = {s.namespace: s.parameters["policy"] for s in one.specs if s.executable == "robot_node"}
    assert asks == {r: f"emulated-{r.partition('_')[0]}" for r in one.robots}
    assert planned_fleet(one.to_dict()) == one


def test_one_more_gpu_adds_an_engine_and_moves_only_the_robots_that_it_takes(tmp_path) -> None:
    before = planned(tmp_path)
    steps = change(before, planned(tmp_path, gpus=4, running=before))
    assert steps.engines_start == ("gpu3/emulated-swing",)
    assert not steps.engines_stop + steps.start + steps.stop + steps.restart
    assert "engine gpu3/emulated-swing starts, batches up to 4" in steps.lines
    moved = [line for line in steps.lines if "served by" in line]
    assert moved == ["swing_2: served by gpu3/emulated-swing instead of gpu0/emulated-swing"]


def test_fewer_gpus_move_a_model_where_it_must_and_restart_no_robot(tmp_path) -> None:
    before = planned(tmp_path)
    steps = change(before, planned(tmp_path, gpus=2, running=before))
    assert "engine gpu2/emulated-drive moves to gpu1" in steps.lines
    assert "engine gpu1/emulated-swing stops" in steps.lines
    assert not steps.restart + steps.start + steps.stop


def test_robots_that_come_and_go_are_started_and_stopped_and_nothing_else(tmp_path) -> None:
    before = planned(tmp_path)
    steps = change(before, planned(tmp_path, swing=2, drive=3, running=before))
    assert (steps.start, steps.stop, steps.restart) == (("drive_3",), ("swing_3",), ())
    assert set(steps.tell) == {"serving"}


def test_the_same_fleet_does_not_change(tmp_path) -> None:
    before = planned(tmp_path)
    assert change(before, planned(tmp_path, running=before)).lines == ()


@pytest.fixture(scope="module")
def fleet_and_plan():
    fleet = read_fleet(EMULATED, Known(("sim",)))
    found = read_profiles([CONFIG / "profiles"])
    workload, cluster = fleet_workload([(EMULATED, fleet)], found, WhatIf())
    return fleet, Planner(workload, cluster, PlanOptions()).plan(explain=False)


def made(plan, counts):
    """The same plan with so many robots on each engine, by task."""
    like = {next(iter(s.robots)): s for s in plan.servers}
    servers, first = [], dict.fromkeys(like, 1)
    for task, robots in counts:
        names = tuple(f"{task}_{i}" for i in range(first[task], first[task] + robots))
        first[task] += robots
        servers.append(replace(like[task], gpu=f"gpu{len(servers)}", robots={task: names}))
    return replace(plan, gpus=len(servers) + 1, servers=tuple(servers))


COUNTS = st.lists(st.tuples(st.sampled_from(["swing", "drive"]), st.integers(1, 4)), min_size=1)


@given(COUNTS, COUNTS)
def test_a_plan_that_is_made_like_the_running_one_serves_the_same(fleet_and_plan, one, two):
    """Exchanged GPUs and robots of a class leave all numbers as they were, and what is the same
    in both stays where it is."""
    fleet, plan = fleet_and_plan

    def served(made):
        return served_plan(EMULATED, fleet, made, devices(made, 0, "auto"))

    before, plain = served(made(plan, one)), made(plan, two)
    alike = served(like_running(plain, fleet, before))
    plain = served(plain)

    def shape(served):
        return sorted((e.policy, e.batch, len(e.robots)) for e in served.engines)

    assert shape(alike) == shape(plain)
    assert alike.periods_s == plain.periods_s
    assert alike.routes.keys() == plain.routes.keys()
    gpus = [f"gpu{i}" for i in range(len(two) + 1)]
    for policy in alike.policies.keys() & before.policies.keys():
        was, now = ({e.gpu for e in s.engines if e.policy == policy} for s in (before, alike))
        assert len(was & now) == min(len(was & set(gpus)), len(now)), "they stay on their GPUs"


def test_a_host_with_fewer_gpus_than_the_plan_uses_is_told(tmp_path) -> None:
    file = CONFIG / "fleets" / "paper_p1.yaml"
    fleet = read_fleet(file, Known(("sim",)))
    profiles = read_profiles([CONFIG / "profiles"])
    workload, cluster = fleet_workload([(file, fleet)], profiles, WhatIf())
    plan = Planner(workload, cluster, PlanOptions()).plan(explain=False)
    assert devices(plan, 8, "auto")(7) == "cuda:7"
    assert devices(plan, 8, "cpu")(7) == devices(plan, 0, "auto")(7) == "cpu"
    with pytest.raises(ConfigError, match="the plan uses 8 GPUs and this host has 2"):
        devices(plan, 2, "auto")
