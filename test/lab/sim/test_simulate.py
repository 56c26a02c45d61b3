"""A fleet in virtual time obeys the physics of fleets; the dispatcher in it is the real one."""

import math
import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan, StaticHorizons
from kairos_ros.core.scheduling.policies import parse_scheduling
from kairos_ros.lab.sim.arrivals import TraceTask, trace_tasks
from kairos_ros.lab.sim.fleet_options import FleetOptions
from kairos_ros.lab.sim.retrim import retrimmed
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.sim_engine import SimEngine, capacity_per_s, linear_profile
from kairos_ros.lab.sim.simulate import simulate
from kairos_ros.lab.sim.workloads import workload
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.recording.runs.trace import Trace, TraceRound
from kairos_ros.serving.options import ServingOptions

RATE_HZ = 30.0
PERIOD_NS = round(1e9 / RATE_HZ)
PERIOD_S = PERIOD_NS / 1e9
POLICIES = ["fifo", "least_service", "wait_ratio", "oldest_task", "admit"]
LIBERO = workload("pi05-libero", tasks=40)
META = workload("metaworld")


def trace(*executed, lead=4, name="t"):
    rounds, done = [], 0
    for j, count in enumerate(executed):
        at = max(0, done - min(lead, executed[j - 1])) if j else 0
        rounds.append(TraceRound(j + 1, at, at, min(50, count + lead), count))
        done += count
    return Trace(
        name=name,
        kind="k",
        instruction="go",
        seed=0,
        control_rate_hz=RATE_HZ,
        chunk_size=50,
        action_dim=1,
        policy="p",
        horizon_policy="recorded",
        success=True,
        duration_s=0.0,
        rounds=tuple(rounds),
    )


def run(
    given_jobs,
    robots,
    *,
    latency="80+35b",
    cap=8,
    scheduling="fifo",
    rules=None,
    network_s=0.005,
    spread=0.0,
    seed=1,
    patient=True,
    stale_ms=0,
    engines=None,
    calibration=None,
    **fleet,
):
    rules = rules or Rules("replay")
    if patient:  # nobody repeats a request, nothing is refused
        rules = replace(rules, timeout_ns=10**15, timeout_max_ns=10**15)
    serving = ServingOptions(
        parse_scheduling(scheduling),
        "static:10",
        stale_after_ns=stale_ms * 1_000_000,
        default_deadline_ns=10**15 if patient else 10 * 10**9,
        max_queue=10**6,
        calibration=calibration,
    )
    engines = engines or [SimEngine("edge", linear_profile(latency, cap), spread=spread)]
    return simulate(
        given_jobs, FleetOptions(robots, rules, network_s, **fleet), serving, engines, seed
    )


def alone(trace, latency_s, network_s):
    """Duration (s) of a task that has the engine to itself: every answer takes as long."""
    answer_ns = round(latency_s * 1e9) + 2 * round(network_s * 5e8)
    free = began = executed = before = 0  # control periods, actions
    for j, recorded in enumerate(trace.rounds):
        asked = began + recorded.requested_at - before if j else 0
        there = -(-(asked * PERIOD_NS + answer_ns) // PERIOD_NS)
        before, began = executed, max(free, there)
        executed += recorded.executed
        free = began + recorded.executed
    return (free - 1) * PERIOD_NS / 1e9


@given(
    executed=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    lead=st.integers(0, 12),
    latency_ms=st.integers(1, 900),
    network_ms=st.integers(0, 200),
)
@settings(max_examples=300)
@example(executed=[1], lead=0, latency_ms=1, network_ms=99)
def test_alone_a_task_takes_what_the_closed_form_says(executed, lead, latency_ms, network_ms):
    recorded = trace(*executed, lead=lead)
    result = run(
        [TraceTask(0, recorded, wanted_s=0.0)],
        1,
        latency=f"{latency_ms}+0b",
        cap=1,
        network_s=network_ms / 1e3,
    )
    expected = alone(recorded, latency_ms / 1e3, network_ms / 1e3)
    assert result.tasks[0].duration_s == pytest.approx(expected, abs=1e-6)


@given(
    seed=st.integers(0, 10**6),
    scheduling=st.sampled_from(POLICIES),
    accounting=st.sampled_from(["replay", "observation"]),
    stale_ms=st.sampled_from([0, 50]),
    robots=st.integers(1, 30),
    patient=st.booleans(),
    spread=st.sampled_from([0.0, 0.3]),
    rate=st.none() | st.floats(0.1, 10.0),
    cloud=st.none() | st.tuples(st.floats(0.1, 0.3), st.sampled_from([0.0, 20.0]), st.booleans()),
)
@settings(max_examples=25)
@pytest.mark.slow
def test_any_fleet_obeys_the_physics(
    seed, scheduling, accounting, stale_ms, robots, patient, spread, rate, cloud
):
    traces = LIBERO.traces[:20]
    engines = [SimEngine("edge", linear_profile("80+35b", 8, "p"), spread=spread)]
    if cloud:
        fast = linear_profile("40+17.5b", 8, "p")
        engines.append(SimEngine("cloud", fast, "cloud", *cloud, spread=spread))
    result = run(
        trace_tasks(traces, seed, rate, 20),
        robots,
        scheduling=scheduling,
        rules=Rules(accounting),
        stale_ms=stale_ms,
        engines=engines,
        seed=seed,
        patient=patient,
    )
    by_seed = {t.seed: t for t in traces}
    assert sorted(t.number for t in result.tasks) == list(range(20))
    rounds = defaultdict(list)
    for r in result.rounds:
        rounds[r.task].append(r)
    for task in result.tasks:
        recorded, own = by_seed[task.seed], rounds[task.task]
        assert task.outcome == "succeeded"
        assert task.actions == recorded.actions == sum(r.executed for r in own)
        assert task.given_s >= task.wanted_s - 1e-9
        assert task.ended_s <= result.length_s
        floor_s = (recorded.actions - 1) * PERIOD_S + 0.115 * math.exp(-5 * spread)
        assert task.duration_s >= floor_s
        moved = (task.actions - 1) * PERIOD_S
        assert task.duration_s == pytest.approx(moved + task.stalled_s, abs=2 * PERIOD_S)
        if accounting == "replay":
            assert [r.executed for r in own] == [r.executed for r in recorded.rounds]
            assert [r.requested_at for r in own] == [r.requested_at for r in recorded.rounds]
        for r in own[:-1]:  # the last one may be asked for in vain
            assert r.answered_s > r.requested_s
            assert r.server_s >= r.queued_s >= 0
        moving = [r for r in own if r.executed]
        assert all(r.exec_start_s >= r.answered_s - 1e-9 for r in moving)
        assert all(b.exec_start_s >= a.exec_end_s - 1e-6 for a, b in pairwise(moving))
    for robot in result.robots:
        spans = [s for s in result.spans if s.robot == robot]
        assert all(a.end_s == b.start_s for a, b in pairwise(spans))
        assert sum(s.end_s - s.start_s for s in spans) == pytest.approx(result.length_s)


@pytest.mark.parametrize("scheduling", POLICIES)
def test_under_load_no_task_is_faster_than_alone(scheduling):
    result = run(trace_tasks(LIBERO.traces, 5, 1.5, 40), 40, scheduling=scheduling)
    by_seed = {t.seed: t for t in LIBERO.traces}
    slower = [t.duration_s / alone(by_seed[t.seed], 0.115, 0.005) for t in result.tasks]
    assert min(slower) >= 1 - 1e-9
    assert max(slower) > 1.2


def test_equal_seeds_give_equal_runs_and_others_do_not():
    def once(seed, **options):
        return repr(
            run(
                trace_tasks(LIBERO.traces, seed, 1.0, 30),
                20,
                seed=seed,
                spread=0.2,
                network_spread=0.3,
                stale_ms=50,
                patient=False,
                rules=Rules("observation"),
                **options,
            )
        )

    assert once(3) == once(3)
    assert once(3) != once(4)


def test_a_saturated_engine_serves_what_its_profile_says():
    result = run(trace_tasks(LIBERO.traces, 1, None, None), 60, open_s=120.0)
    served = [r for r in result.rounds if 20 <= r.answered_s < 120]
    capacity = capacity_per_s(linear_profile("80+35b", 8))
    assert len(served) / 100 == pytest.approx(capacity, rel=0.03)
    assert max(r.batch_size for r in served) == 8
    assert not any(t.given_s > 120 for t in result.tasks)
    assert result.open_s == ((0.0, 120.0),)


def test_free_robots_take_the_oldest_task_and_its_queueing_is_reported():
    result = run(trace_tasks(LIBERO.traces, 1, 2.0, 40), 5)
    given_order = sorted(result.tasks, key=lambda t: (t.given_s, t.wanted_s))
    assert [t.number for t in given_order] == list(range(40))
    assert summarise(result).queueing_s.mean > 1
    assert {t.robot for t in result.tasks} == set(result.robots)


def test_back_to_back_nobody_queues_for_a_robot():
    result = run(trace_tasks(LIBERO.traces, 1, None, 20), 5)
    assert all(t.wanted_s == pytest.approx(t.given_s) for t in result.tasks)


def test_overflow_goes_to_the_cloud_where_that_is_sooner_and_only_there():
    near = SimEngine("edge", linear_profile("80+35b", 8, "p"))
    fast = linear_profile("40+17.5b", 8, "p")

    def share(wan_s, mbps=0.0):
        engines = [near, SimEngine("cloud", fast, "cloud", wan_s, mbps)]
        result = run(trace_tasks(LIBERO.traces, 1, None, 60), 60, engines=engines)
        tiers = [r.tier for r in result.rounds if r.executed]
        return tiers.count("cloud") / len(tiers)

    assert 0.3 < share(0.02) < 0.8
    assert share(5.0) == 0.0
    assert share(0.02, mbps=2.0) < share(0.02)


def cloud_only(rtt_s, open_s=60.0, **cloud):
    engine = SimEngine("cloud", linear_profile("80+35b", 8), "cloud", rtt_s, **cloud)
    result = run(trace_tasks(LIBERO.traces, 1, None, None), 90, engines=[engine], open_s=open_s)
    return [r for r in result.rounds if 20 <= r.answered_s < open_s]


def test_no_gpu_waits_for_the_network_unless_it_is_held_while_its_batch_travels():
    capacity = capacity_per_s(linear_profile("80+35b", 8))
    assert len(cloud_only(0.2)) / 40 == pytest.approx(capacity, rel=0.03)
    held = len(cloud_only(0.2, pipelined=False)) / 40
    assert held == pytest.approx(8 / (8 / capacity + 0.2), rel=0.03)


def test_a_pool_in_the_cloud_serves_as_much_as_its_replicas_together():
    capacity = capacity_per_s(linear_profile("80+35b", 8))
    assert len(cloud_only(0.1, replicas=3)) / 40 == pytest.approx(3 * capacity, rel=0.05)


def test_tasks_of_a_stateful_policy_change_engines_less_often():
    engines = [
        SimEngine("edge", linear_profile("80+35b", 8, "p")),
        SimEngine("cloud", linear_profile("40+17.5b", 8, "p"), "cloud", 0.05, 50.0),
    ]

    def switches(history_bytes):
        result = run(
            trace_tasks(LIBERO.traces, 1, None, 60),
            30,
            engines=engines,
            history_bytes=history_bytes,
        )
        moving = [r for r in result.rounds if r.executed]
        pairs = [(a, b) for a, b in pairwise(moving) if a.task == b.task]
        return sum(a.tier != b.tier for a, b in pairs) / len(pairs)

    assert switches(2_000_000) < 0.5 * switches(0)


def test_a_link_carries_no_more_than_its_bandwidth():
    served = cloud_only(0.1, bandwidth_mbps=2.88)  # ten observations of 36 kB a second
    assert len(served) / 40 == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("history_bytes", [0, 200_000])
def test_an_answer_from_the_cloud_is_there_when_the_decision_said(history_bytes):
    engines = [
        SimEngine("edge", linear_profile("80+35b", 8, "p")),
        SimEngine("cloud", linear_profile("40+17.5b", 8, "p"), "cloud", 0.1, 50.0),
    ]
    result = run(
        trace_tasks(LIBERO.traces, 1, None, 60), 20, engines=engines, history_bytes=history_bytes
    )
    told = [
        (float(re.search(r"\((\d+\.\d+) s there", r.reason)[1]), r.server_s - r.queued_s)
        for r in result.rounds
        if r.tier == "cloud" and r.batch_size == 1
    ]
    assert len(told) > 50
    assert [said for said, _ in told] == pytest.approx([took for _, took in told], abs=0.0051)


def test_a_bandwidth_delays_what_goes_through_it():
    narrow = SimEngine("edge", linear_profile("80+35b", 8), bandwidth_mbps=8.0)
    result = run([TraceTask(0, trace(10, 10), 0.0)], 1, engines=[narrow], observation_bytes=50_000)
    (first, _) = result.rounds
    assert first.server_s == pytest.approx(0.115 + 0.05)
    assert first.compute_s == pytest.approx(0.115)


def test_a_simulation_whose_only_engine_was_refused_says_why_and_ends():
    broken = trace(10, 10, name="torn")
    chunk = np.full((50, 1), np.nan, np.float32)
    broken = replace(broken, rounds=tuple(replace(r, chunk=chunk) for r in broken.rounds))
    cloud = SimEngine("far", linear_profile("80+35b", 8), "cloud", 0.02)
    with pytest.raises(ConfigError, match=r"no engine is left.*far: it sent a chunk that is not"):
        run([TraceTask(0, broken, None)], 1, engines=[cloud])


def test_refetching_makes_chunks_from_newer_observations():
    def age(stale_ms):
        result = run(
            trace_tasks(LIBERO.traces, 1, None, 60),
            40,
            rules=Rules("observation"),
            stale_ms=stale_ms,
        )
        return np.mean([r.observed_at - r.requested_at for r in result.rounds if r.executed])

    assert age(0) == 0
    assert age(50) > 0.5


def test_in_overload_a_round_is_observed_about_twice_not_with_every_batch():
    result = run(
        trace_tasks(LIBERO.traces, 1, None, 60), 60, rules=Rules("observation"), stale_ms=50
    )
    attempts = [r.attempts for r in result.rounds if r.executed]
    assert 1.5 < np.mean(attempts) < 2.5


def test_stopping_keeps_what_was_done_and_cancels_the_rest():
    ended = []
    result = simulate(
        trace_tasks(LIBERO.traces, 1, None, None),
        FleetOptions(10),
        ServingOptions(parse_scheduling("fifo"), "static:10"),
        [SimEngine("edge", linear_profile("80+35b", 8))],
        seed=1,
        progress=lambda tasks, now_s: ended.append(tasks),
        stop=lambda: len(ended) >= 12,
    )
    summary = summarise(result)
    assert (summary.tasks, summary.unfinished) == (12, 10)


def test_a_horizon_policy_is_judged_by_the_server_on_recorded_chunks():
    """One robot whose answers always arrive in time is the isolation that `retrimmed` derives."""
    rules = Rules("observation", "tail_agreement:t=0.3", lead=2)
    for recorded in META.traces[:6]:
        result = run([TraceTask(0, recorded, 0.0)], 1, latency="20+1b", rules=rules)
        derived = retrimmed(recorded, rules, lead=2).rounds
        assert result.tasks[0].actions == recorded.actions
        assert [(r.observed_at, r.horizon, r.executed) for r in result.rounds] == [
            (r.observed_at, r.horizon, r.executed) for r in derived
        ]
        assert len({r.horizon for r in result.rounds}) > 1


def test_retrimming_keeps_the_length_and_counts_elapsed_actions_as_told():
    recorded = trace(*[5] * 20)
    kept = retrimmed(recorded, Rules(horizon="static:10"), lead=4, elapsed="kept")
    assert [(r.requested_at, r.executed) for r in kept.rounds][:3] == [(0, 10), (6, 10), (16, 10)]
    lost = retrimmed(recorded, Rules(horizon="static:10"), lead=4)
    assert [(r.requested_at, r.executed) for r in lost.rounds][:3] == [(0, 10), (6, 6), (12, 6)]
    assert kept.actions == lost.actions == recorded.actions == 100
    assert retrimmed(recorded, Rules(horizon="static:50"), lead=99).rounds[1].requested_at == 25


def test_replay_under_another_horizon_executes_it_whole():
    result = run(trace_tasks(LIBERO.traces, 1, None, 10), 5, rules=Rules("replay", "static:10"))
    for task in result.tasks:
        assert set(task.round_executed[:-1]) == {10}


TUNED = HorizonCalibration(
    "p", 50, {}, HorizonPlan((), 5), static=StaticHorizons({("k",): 20}, general=10)
)


def test_static_tuned_needs_no_chunks_and_takes_each_tasks_own_horizon():
    rules = Rules("replay", "static:tuned", calibration=TUNED)
    other = replace(trace(*[5] * 20, name="other"), kind="unknown")
    result = run([TraceTask(0, trace(*[5] * 20)), TraceTask(1, other)], 2, rules=rules)
    assert [set(task.round_executed) for task in result.tasks] == [{20}, {10}]
    observed = replace(rules, accounting="observation")
    engines = [SimEngine("edge", linear_profile("80+35b", 8, policy_id="p"))]
    result = run(
        [TraceTask(0, trace(*[5] * 20))], 1, rules=observed, calibration=TUNED, engines=engines
    )
    assert {r.horizon for r in result.rounds} == {20}


@pytest.mark.parametrize(
    ("traces", "rules", "told"),
    [
        ([trace(5), replace(trace(5, name="u"), policy="q")], Rules(), "of one policy"),
        ([replace(trace(5), rounds=())], Rules(), "executed no actions"),
        ([trace(5)], Rules(horizon="tail_agreement"), "holds no chunk"),
        ([trace(5)], Rules(horizon="static:51"), "exceeds the chunk"),
        (
            [replace(trace(5), policy="q")],
            Rules(horizon="static:tuned", calibration=TUNED),
            "calibrated for policy 'p', but the engine runs 'q'",
        ),
    ],
)
def test_traces_that_cannot_be_simulated_are_refused(traces, rules, told):
    with pytest.raises(ConfigError, match=told):
        run([TraceTask(i, t) for i, t in enumerate(traces)], 2, rules=rules)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: FleetOptions(0), "at least 1 robot"),
        (lambda: FleetOptions(1, network_s=-1), "network_s"),
        (lambda: FleetOptions(1, open_s=0), "open_s"),
        (lambda: linear_profile("80", 8), "80\\+35b"),
        (lambda: linear_profile("80+35b", 0), "batch cap"),
        (lambda: SimEngine("e", linear_profile("80+35b", 8), network_s=math.nan), "network_s"),
        (lambda: SimEngine("e", linear_profile("80+35b", 8), tier="moon"), "tier"),
        (lambda: SimEngine("e", linear_profile("80+35b", 8), replicas=2), "2 replicas"),
        (lambda: trace_tasks([], 1, None, 1), "no traces"),
        (lambda: trace_tasks([trace(5)], 1, 0.0, 1), "rate"),
        (lambda: trace_tasks([trace(5)], 1, None, 0), "number of tasks"),
        (lambda: run([], 1), "no tasks"),
    ],
)
def test_options_that_make_no_sense_are_refused(build, told):
    with pytest.raises(ConfigError, match=told):
        build()
