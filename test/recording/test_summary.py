"""A run's metrics, against numbers worked out by hand."""

import json
import math
from dataclasses import asdict, replace

import pytest

from kairos_ros.recording.runs.run import (
    CANCELED,
    LOST,
    FleetRun,
    Span,
    TaskRecord,
    Timeline,
    joined,
    shared_tasks,
)
from kairos_ros.recording.runs.summary import Spread, spread, summarise, wilson_95

QUICK = TaskRecord(
    number=0,
    robot="arm_1",
    scene="reach-v3",
    seed=7,
    wanted_s=1.0,
    given_s=1.0,
    ended_s=6.0,
    outcome="succeeded",
    success=True,
    duration_s=4.0,
    first_wait_s=0.5,
    stalled_s=1.0,
    actions=30,
    round_latency_s=(0.1, 0.3, 0.2, 0.4),
    round_executed=(10, 10, 10, 0),
    dropped=1,
)
SLOW = replace(
    QUICK,
    number=1,
    robot="arm_2",
    wanted_s=0.0,
    given_s=2.0,
    ended_s=20.0,
    outcome="max_actions",
    success=False,
    duration_s=16.0,
    first_wait_s=1.5,
    stalled_s=5.0,
    actions=20,
    round_latency_s=(0.4,),
    round_executed=(20,),
    refusals=2,
    guarded=3,
)
RUN = FleetRun(
    ("arm_1", "arm_2"), 30.0, (QUICK, SLOW), (Span("arm_1", 0.0, 30.0, "idle"),), ((0.0, 15.0),)
)


def test_metrics_of_two_tasks_as_worked_out_by_hand():
    s = summarise(RUN)
    assert (s.tasks, s.succeeded, s.success, s.unfinished) == (2, 1, 0.5, 0)
    assert s.latency_s == Spread(2, 10.0, 7.0, 10.0, pytest.approx(15.4))
    assert s.queueing_s.mean == 1.0
    assert s.stall_fraction == pytest.approx(6 / 20)
    assert s.mid_task_stall_fraction == pytest.approx(4 / 18)
    assert s.mean_horizon == pytest.approx(50 / 4)
    assert s.rounds_per_task == 2.5
    assert s.chunk_latency_s.p50 == pytest.approx(0.3)
    assert s.chunk_latency_s.p95 == pytest.approx(0.4)
    assert (s.actions, s.tasks_per_minute) == (50, 4.0)
    assert (s.refusals, s.dropped, s.guarded) == (2, 2, 3)
    assert (s.scenes["reach-v3"].tasks, s.scenes["reach-v3"].succeeded) == (2, 1)


def test_tasks_are_counted_by_policy_where_they_ran_on_several():
    alike = replace(RUN, tasks=(replace(QUICK, policy="pick-1"), replace(SLOW, policy="pick-1")))
    assert summarise(RUN).policies == summarise(alike).policies == {}
    run = replace(RUN, tasks=(replace(QUICK, policy="pick-1"), replace(SLOW, policy="place-2")))
    found = summarise(run).policies
    assert {name: (one.tasks, one.succeeded) for name, one in found.items()} == {
        "pick-1": (1, 1),
        "place-2": (1, 0),
    }


def test_jumps_where_chunks_meet_are_told_in_steps_of_their_own_task():
    assert summarise(RUN).seam is None
    fine = replace(QUICK, round_seam=(math.nan, 0.2, 0.4, math.nan), mean_step=0.1)
    coarse = replace(SLOW, round_seam=(6.0,), mean_step=2.0)
    still = replace(SLOW, number=2, round_seam=(1.0,), mean_step=0.0)
    assert summarise(replace(RUN, tasks=(fine, coarse, still))).seam == pytest.approx(3.0)


def test_a_round_that_was_given_up_has_no_latency():
    given_up = replace(QUICK, round_latency_s=(0.1, 0.3, math.nan, 0.2, 0.4))
    given_up = replace(given_up, round_executed=(10, 10, 0, 10, 0))
    s = summarise(replace(RUN, tasks=(given_up, SLOW)))
    assert s.chunk_latency_s == summarise(RUN).chunk_latency_s
    json.dumps(asdict(s), allow_nan=False)


@pytest.mark.parametrize("outcome", [CANCELED, LOST])
def test_a_task_that_did_not_end_by_itself_counts_only_as_unfinished(outcome):
    cut = replace(QUICK, number=2, outcome=outcome, success=False, duration_s=100.0)
    with_cut = summarise(replace(RUN, tasks=(*RUN.tasks, cut)))
    assert with_cut == replace(summarise(RUN), unfinished=1)


def test_a_run_without_a_finished_task_has_no_made_up_numbers():
    s = summarise(replace(RUN, tasks=()))
    assert (s.tasks, s.success, s.latency_s, s.stall_fraction, s.mean_horizon) == (0, *[None] * 4)
    json.dumps(asdict(s), allow_nan=False)


def test_one_value_is_its_own_distribution():
    assert spread([3.0]) == Spread(1, 3.0, 3.0, 3.0, 3.0)


def test_wilson_interval_of_eight_in_ten():
    low, high = wilson_95(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.49, 0.943)
    assert wilson_95(5, 5)[1] == 1.0


def test_joined_runs_follow_each_other():
    both = joined([RUN, RUN])
    assert both.length_s == 60.0
    assert [t.given_s for t in both.tasks] == [1.0, 2.0, 31.0, 32.0]
    assert both.open_s == ((0.0, 15.0), (30.0, 45.0))
    assert summarise(both).tasks_per_minute == 4.0  # one of two ends in time, in each run
    assert both.spans[1] == Span("arm_1", 30.0, 60.0, "idle")


def test_only_tasks_that_both_runs_finished_are_compared():
    third = replace(QUICK, number=2)
    fast = replace(RUN, tasks=(QUICK, SLOW, third))
    slow = replace(RUN, tasks=(QUICK, replace(SLOW, outcome=CANCELED)))
    ours, theirs = shared_tasks(fast, slow)
    assert [t.number for t in ours.tasks] == [t.number for t in theirs.tasks] == [0]


def test_reports_of_activity_become_spans():
    timeline = Timeline()
    timeline.report("arm_1", 0.0, "idle")
    timeline.report("arm_1", 1.0, "holding")
    timeline.report("arm_1", 1.5, "holding")
    timeline.report("arm_1", 2.0, "executing")
    assert timeline.spans(5.0) == (
        Span("arm_1", 0.0, 1.0, "idle"),
        Span("arm_1", 1.0, 2.0, "holding"),
        Span("arm_1", 2.0, 5.0, "executing"),
    )
