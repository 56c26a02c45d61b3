"""Plans: by hand, by properties that hold for any fleet, and those of the paper's workloads."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workloads import ALL, HZ, LIGHT, SLO_S, flat, profile, robot_class, workload

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.load_profiles import read_profiles
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.fleet.workload import WhatIf, fleet_workload
from kairos_ros.planning.capacity import ModelCapacity
from kairos_ros.planning.planner import SLACK, ClusterTooSmallError, Planner
from kairos_ros.planning.sweep import most_robots
from kairos_ros.planning.workload import Cluster, PlanOptions

CONFIG = Path(__file__).parents[2] / "config"
SYNCHRONOUS = PlanOptions(execution="synchronous", network_s=0.0)
S1, S2, SAFETY, MONITOR = Component


def plan(work, gpus, options=SYNCHRONOUS, memory_mib=8000.0):
    return Planner(work, Cluster(gpus, "GPU", memory_mib), options).plan()


def counts(made):
    return ":".join(str(len(made.servers_of(c))) for c in (S1, S2, SAFETY, MONITOR))


# By hand


def test_one_server_carries_as_many_requests_as_its_slo_allows():
    """Latency rises from 100 ms at 5/s to 300 ms at 15/s; the SLO of 200 ms is kept up to 10/s.
    Mean latency there is 60 ms, so the loop allows 1 / 0.26 = 3.85/s of each of 4 robots."""
    work = workload([robot_class("pick", 4)], profile(S1, (5, 15), (0.05, 0.07), (0.1, 0.3)))
    made = plan(work, 1)
    assert made.value_hz == pytest.approx(10 * (1 - SLACK), rel=1e-3)
    (server,) = made.servers
    assert server.load == pytest.approx(1 - SLACK, rel=1e-3)
    assert server.margin_s == pytest.approx(0.001, abs=2e-4)
    assert made.limits.startswith("System 1 on gpu0 at 99 %: one more GPU gives +5")


def test_the_closed_loop_limits_robots_whose_servers_are_idle():
    """Eq. 4: 1 / (0.2 + 0.05)."""
    work = workload([robot_class("pick", 2)], flat(S1, 0.05, 100))
    made = plan(work, 1)
    assert made.classes[0].actions_hz == pytest.approx(4.0 * (1 - SLACK))
    assert made.limits == "the robots themselves: no GPU makes them faster"


def test_overlapped_robots_move_all_the_time_and_ask_more_often():
    """1 / 0.2 actions/s take 1 / (0.2 - 0.05) requests/s, less the slack of the planner."""
    work = workload([robot_class("pick", 2)], flat(S1, 0.05, 100))
    made = plan(work, 1, PlanOptions(network_s=0.0))
    (one,) = made.classes
    assert one.actions_hz == pytest.approx(5.0 * (1 - SLACK))
    assert one.requests_hz == pytest.approx((2 * one.actions_hz * 0.2 - 1) / 0.15)


def test_plans_of_system_2_take_their_share_of_the_loop():
    """1 / (0.2 + 0.05 + 0.5 / 10), and a tenth of the requests."""
    work = workload(
        [robot_class("kit", 2, (S1, S2), ratio=10)], flat(S1, 0.05, 100), flat(S2, 0.5, 100)
    )
    made = plan(work, 2)
    assert made.classes[0].actions_hz == pytest.approx((1 - SLACK) / 0.3, rel=1e-3)
    assert made.classes[0].plans_hz == pytest.approx(made.classes[0].actions_hz / 10)


def test_the_network_is_part_of_every_latency():
    work = workload([robot_class("pick", 2)], flat(S1, 0.05, 100))
    made = plan(work, 1, replace(SYNCHRONOUS, network_s=0.03))
    assert made.servers[0].p99_s == pytest.approx(0.08)
    assert made.classes[0].actions_hz == pytest.approx((1 - SLACK) / 0.28)


def test_obligations_get_the_fewest_servers_and_the_rest_sets_the_pace():
    """16 judgements/s of 10 per server are 2 servers; they share them evenly."""
    work = workload(
        [robot_class("pick", 8, (S1, SAFETY))], flat(S1, 0.05, 10), flat(SAFETY, 0.1, 10)
    )
    made = plan(work, 6)
    assert counts(made) == "4:0:2:0"
    assert [server.rate_hz for server in made.servers_of(SAFETY)] == [8, 8]
    assert made.value_hz == pytest.approx(32 * (1 - SLACK), rel=1e-3)


def test_what_is_worth_more_gets_the_servers():
    """One server of 10/s: 2 robots of value 3 get the 4/s that they can do, 2 others the rest."""
    work = workload(
        [robot_class("cheap", 2), robot_class("dear", 2, value=3.0)], flat(S1, 0.05, 10)
    )
    cheap, dear = plan(work, 1).classes
    assert dear.actions_hz == pytest.approx(4.0, rel=0.01)
    assert cheap.actions_hz == pytest.approx(1.0, rel=0.02)


def test_a_floor_is_kept_against_what_is_worth_more():
    work = workload(
        [robot_class("cheap", 2, floor_hz=6.0), robot_class("dear", 2, value=3.0)],
        flat(S1, 0.05, 10),
    )
    cheap, dear = plan(work, 1).classes
    assert 2 * cheap.actions_hz >= 6.0
    assert dear.actions_hz == pytest.approx(2.0, rel=0.02)


def test_fair_gives_every_class_the_same_share_of_its_most():
    work = workload(
        [robot_class("slow", 2, action_s=0.75), robot_class("fast", 2, value=3.0)],
        flat(S1, 0.05, 5),
    )
    made = plan(work, 1, replace(SYNCHRONOUS, objective="fair"))
    shares = [one.actions_hz / one.ceiling_hz for one in made.classes]
    assert shares[0] == pytest.approx(shares[1])
    assert shares[0] == pytest.approx(5 / (2 * 1.25 + 2 * 4), rel=0.01)


def test_fewest_uses_no_gpu_that_the_floors_do_not_need():
    work = workload([robot_class("pick", 8, floor_hz=16.0)], flat(S1, 0.05, 10))
    made = plan(work, 6, replace(SYNCHRONOUS, objective="fewest"))
    assert len(made.servers) == 2
    assert made.spare == 4
    assert made.value_hz == pytest.approx(16.0)


def test_a_batching_that_does_not_fit_the_memory_is_not_chosen():
    small = profile(S1, (5, 10), (0.05, 0.05), (0.1, 0.1), memory_mib=4000)
    large = profile(S1, (5, 40), (0.05, 0.05), (0.1, 0.1), batch=8, memory_mib=9000)
    both = replace(small, loads=(*small.loads, *large.loads))
    work = workload([robot_class("pick", 8)], both)
    assert plan(work, 1, memory_mib=8000).value_hz == pytest.approx(10 * (1 - SLACK), rel=1e-3)
    assert plan(work, 1, memory_mib=9000).servers[0].batch == 8


# Bad input


def test_too_few_gpus_are_refused_with_the_slo_that_fails_first_and_by_how_much():
    rising = profile(SAFETY, (10, 20), (0.1, 0.2), (0.4, 0.9))  # 12/s within 500 ms
    work = workload([robot_class("pick", 9, (S1, SAFETY))], flat(S1, 0.05, 50), rising)
    with pytest.raises(ClusterTooSmallError) as caught:
        plan(work, 1)
    text = str(caught.value)
    assert "safety of pick (m) fails first: 1 GPU left of 2" in text
    assert "p99 would be 800 ms, 300 ms beyond its slo_ms 500, at 18 requests/s" in text
    assert "At least 3 are needed (safety 2, system1 1)" in text


def test_more_than_a_model_answers_at_all_is_said():
    work = workload(
        [robot_class("pick", 9, (S1, SAFETY))], flat(S1, 0.05, 50), flat(SAFETY, 0.1, 10)
    )
    with pytest.raises(ClusterTooSmallError, match="18 requests/s are more than the 10/s"):
        plan(work, 1)


def test_an_slo_that_a_single_robot_does_not_get_is_refused_whatever_the_gpus():
    work = workload([robot_class("pick", 1)], flat(S1, 0.25, 10))
    with pytest.raises(ConfigError, match=r"within 250 ms .* slo_ms 200; no number of GPUs"):
        plan(work, 100)


def test_a_model_larger_than_the_gpu_is_refused():
    work = workload([robot_class("pick", 1)], flat(S1, 0.05, 10))
    with pytest.raises(ConfigError, match="at least 1000 MiB, but a GPU has 500 MiB"):
        plan(work, 1, memory_mib=500)


def test_a_floor_beyond_what_robots_can_do_is_refused():
    work = workload([robot_class("pick", 2, floor_hz=9.0)], flat(S1, 0.05, 10))
    with pytest.raises(ConfigError, match=r"pick: 9 of at most 8\.0 actions/s"):
        plan(work, 100)


# Whatever the fleet


@st.composite
def profiles(draw, component):
    """Of two batchings, with any latencies that a single robot can live with."""
    slo = SLO_S[component]
    loads = []
    for batch, most in ((1, draw(st.floats(11, 30))), (4, draw(st.floats(11, 60)))):
        rates = [most * share for share in (0.2, 0.6, 1.0)]
        mean = sorted(draw(st.lists(st.floats(0.1 * slo, 0.6 * slo), min_size=3, max_size=3)))
        tail = sorted(draw(st.lists(st.floats(0.7 * slo, 2.0 * slo), min_size=3, max_size=3)))
        tail[0] = 0.7 * slo
        loads += profile(component, rates, mean, tail, batch, 1000.0 * batch).loads
    return replace(profile(component, (1, 2), (0.1,) * 2, (0.1,) * 2), loads=tuple(loads))


@st.composite
def workloads(draw):
    classes = []
    for i in range(draw(st.integers(1, 3))):
        components = draw(st.sampled_from([LIGHT, (S1, S2), (S1, MONITOR), ALL]))
        classes.append(
            robot_class(
                f"c{i}", draw(st.integers(1, 12)), components,
                action_s=draw(st.sampled_from([0.2, 0.5])),
                ratio=draw(st.integers(1, 10)) if S2 in components else 1,
                value=draw(st.sampled_from([1.0, 2.0])),
            )
        )  # fmt: skip
    return workload(classes, *(draw(profiles(component)) for component in Component))


ANY_EXECUTION = st.sampled_from(["synchronous", "overlapped"])


def check_plan(made, work, memory, execution):
    """It keeps every robot, memory, SLO and rate."""
    routed = {}
    of = {one.name: one for one in work.classes}
    for server in made.servers:
        assert server.memory_mib <= memory
        capacity = ModelCapacity(work.profiles[server.model, server.component], memory)
        rate = 0.0
        for name, robots in server.robots.items():
            for robot in robots:
                assert (name, robot, server.component) not in routed
                routed[name, robot, server.component] = server
            each = next(one for one in made.classes if one.name == name)
            own = {S1: each.requests_hz, S2: each.plans_hz, **HZ}
            rate += len(robots) * own[server.component]
            assert server.slo_s <= of[name].needs[server.component].slo_s
        assert rate == pytest.approx(server.rate_hz)
        assert server.p99_s <= server.slo_s * (1 + 1e-6)
        assert capacity.tail_s(rate * (1 - 1e-9)) <= server.p99_s
    for one, planned in zip(work.classes, made.classes, strict=True):
        for component in one.needs:
            assert all((one.name, robot, component) in routed for robot in one.robots)
        if execution == "synchronous":
            for robot in one.robots:
                loop_s = one.action_s + routed[one.name, robot, S1].mean_s
                if S2 in one.needs:
                    loop_s += routed[one.name, robot, S2].mean_s / one.system2_ratio
                assert planned.actions_hz * loop_s <= 1 + 1e-6


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(workloads(), st.integers(1, 9), ANY_EXECUTION)
def test_a_plan_keeps_memory_servers_every_robot_and_every_slo(work, gpus, execution):
    memory = 2000.0
    try:
        made = plan(work, gpus, PlanOptions(execution=execution, network_s=0.01), memory)
    except ClusterTooSmallError:
        return
    assert len(made.servers) + made.spare == gpus
    check_plan(made, work, memory, execution)
    assert made.value_hz <= (made.bound_hz or 1e9) * (1 + 1e-6)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(workloads(), ANY_EXECUTION)
def test_more_gpus_never_give_less(work, execution):
    planner = Planner(work, Cluster(1, "GPU", 2000.0), PlanOptions(execution=execution))
    values = [planner.value_hz(gpus) or 0.0 for gpus in range(1, 12)]
    # up to rounding
    assert all(more >= fewer * (1 - 1e-9) for fewer, more in pairwise(values))


# The paper's


def paper(name, robots):
    path = CONFIG / "fleets" / f"paper_{name}.yaml"
    fleet = read_fleet(path, Known(adapters={"sim"}))
    found = read_profiles([CONFIG / "profiles"])
    return fleet_workload([(path, fleet)], found, WhatIf(robots=robots))


@pytest.mark.parametrize("execution", ["synchronous", "overlapped"])
@pytest.mark.parametrize(
    ("robots", "split"), [(8, "5:1:1:1"), (16, "5:1:1:1"), (32, "5:1:1:1"), (64, "4:1:2:1")]
)
def test_table_3_of_the_paper_comes_out(robots, split, execution):
    work, cluster = paper("p4", robots)
    made = Planner(work, cluster, PlanOptions(execution=execution)).plan()
    assert counts(made) == split
    assert made.gap < 0.02
    assert len(made.assumed) == 4


@pytest.mark.parametrize("name", ["p1", "p2", "p3", "mix2", "mix4"])
def test_the_other_workloads_are_planned_to_within_two_percent_of_the_bound(name):
    work, cluster = paper(name, 64)
    made = Planner(work, cluster, PlanOptions()).plan()
    assert made.gap < 0.02
    assert json.loads(json.dumps(made.to_dict()))["gpus"] == 8


@pytest.mark.slow
def test_a_thousand_robots_of_four_classes_are_planned_on_128_gpus():
    work, cluster = paper("mix4", 1000)
    made = Planner(work, replace(cluster, gpus=128), PlanOptions()).plan()
    assert sum(len(names) for s in made.servers_of(S1) for names in s.robots.values()) == 1000
    assert made.gap < 0.02


def test_a_sweep_finds_the_most_robots_by_hand():
    """4/s at most each, half of that is enough: 5 robots per server of 10/s."""
    work = workload([robot_class("pick", 1)], flat(S1, 0.05, 10))
    assert [most_robots(work, 8000, SYNCHRONOUS, gpus, 0.5) for gpus in (1, 2, 3)] == [5, 10, 15]
