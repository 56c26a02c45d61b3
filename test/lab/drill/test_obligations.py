"""What safety, monitor and planner had to answer, and what they answered in time, by hand."""

import math
from dataclasses import replace

import pytest
from task_rules import MS, rules

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component, ComponentRules, Fallback
from kairos_ros.lab.metrics.obligations import describe, invocations_of, judge, promised
from kairos_ros.lab.metrics.slo import Slo, attainment
from kairos_ros.recording.runs.pipeline import JudgementRecord, PipelineRecord, PlanRecord
from kairos_ros.recording.runs.run import FleetRun, RoundRecord, TaskRecord

SAFETY = Slo("safety", 0.5, period_s=0.5)
"""As in `task_rules.rules`."""


def task(robot, given_s=0.0, ended_s=5.0):
    return TaskRecord(0, robot, "push-v3", 1, given_s, given_s, ended_s, "succeeded", task="s/1")


def said(pictured_s, latency_s=0.1, robot="arm_1", component=Component.SAFETY):
    return JudgementRecord(robot, "s/1", component, pictured_s, pictured_s + latency_s, "safe")


def run(judged=(), plans=(), looks_s=None, given=None, tasks=None, rounds=()):
    looks = {"arm_1": tuple(looks_s)} if looks_s is not None else {}
    record = PipelineRecord(given or {"arm_1": rules()}, tuple(judged), tuple(plans), (), looks)
    tasks = tasks or (task("arm_1"),)
    robots = tuple(sorted({t.robot for t in tasks}))
    return FleetRun(robots, 6.0, tasks, (), ((0.0, 5.0),), tuple(rounds), record)


def of(run, slo=SAFETY):
    return attainment(slo, invocations_of(run, slo))


def test_judgements_that_were_never_made_are_missing_and_not_in_time():
    # one look every half second from 0.0 to 4.5; the judge was dead from 1.6 to 3.4
    judged = [said(at) for at in (0.0, 0.5, 1.0, 1.5, 3.5, 4.0, 4.5)]
    attained = of(run(judged))
    # between 1.5 and 3.5 there are 2.0, 2.5 and 3.0
    assert (attained.invocations, attained.met, attained.missing) == (10, 7, 3)
    assert attained.share == pytest.approx(0.7)
    assert attained.p50_s == pytest.approx(0.1)


def test_a_late_judgement_is_no_missing_one():
    attained = of(run([said(i / 2, 0.6 if i == 3 else 0.1) for i in range(10)]))
    assert (attained.invocations, attained.met, attained.missing) == (10, 9, 0)


def test_nothing_is_owed_while_a_robot_shows_no_pictures():
    # its scene is laid out anew from 1.6 to 3.4: the same gap as above, and nobody's fault
    looks_s = [0.0, 0.5, 1.0, 1.5, 3.5, 4.0, 4.5]
    attained = of(run([said(at) for at in looks_s], looks_s=looks_s))
    assert (attained.invocations, attained.missing) == (7, 0)


def test_a_judge_that_never_spoke_owes_the_whole_task():
    attained = of(run(looks_s=[i / 10 for i in range(50)]))
    # 4.5 s is the last one due; that robot did not wait longer than the SLO for it
    assert (attained.invocations, attained.missing, attained.met) == (9, 9, 0)


def test_nothing_is_owed_between_tasks():
    tasks = (task("arm_1", 0.0, 1.0), task("arm_1", 4.0, 5.0))
    assert of(run([said(0.0), said(0.5), said(4.0), said(4.5)], tasks=tasks)).missing == 0


def test_a_picture_that_comes_a_little_early_or_late_is_no_reason_to_miss_one():
    judged = [said(at) for at in (0.05, 0.45, 1.1, 1.5, 2.15, 2.5, 2.9, 3.6, 4.0, 4.6)]
    assert of(run(judged)).missing == 0


def test_plans_that_never_came_count_once_they_are_late():
    plans = [
        PlanRecord("arm_1", "s/1", 0.0, 0.4, "tidy up", "open the drawer"),
        PlanRecord("arm_1", "s/1", 2.0, 3.5, "tidy up", "close the drawer"),
        PlanRecord("arm_1", "s/1", 3.6, math.nan, "tidy up"),
        PlanRecord("arm_1", "s/1", 4.5, math.nan, "tidy up"),
    ]
    slo = Slo("system2", 1.0)
    # the task ended 1.4 s after the third question, which is late, and 0.5 s after the fourth
    attained = of(run(plans=plans), slo)
    assert (attained.invocations, attained.met, attained.missing) == (3, 1, 1)


def test_objectives_come_from_what_each_robot_works_under():
    slow = ComponentRules(900 * MS, Fallback.STOP_AND_REPLAN, period_ns=500 * MS)
    other = rules(monitor=None, system2=None)
    other = replace(other, components={**other.components, Component.SAFETY: slow})
    given = {"arm_2": rules(), "arm_1": rules(), "arm_3": other}
    assert promised(PipelineRecord(given)) == [
        Slo("system1", 0.2, 0.0, ("arm_1", "arm_2", "arm_3")),
        Slo("system2", 1.0, 0.0, ("arm_1", "arm_2")),
        Slo("safety", 0.5, 0.5, ("arm_1", "arm_2")),
        Slo("safety", 0.9, 0.5, ("arm_3",)),
        Slo("monitor", 2.0, 2.0, ("arm_1", "arm_2")),
    ]
    assert (
        describe(promised(PipelineRecord(given))[3], tuple(given)) == "safety 2/s in 900 ms, arm_3"
    )
    assert describe(promised(PipelineRecord(given))[0], tuple(given)) == "system1 in 200 ms"


ROUND = RoundRecord(
    robot="arm_1",
    task="s/1",
    round=1,
    attempts=1,
    requested_s=0.0,
    answered_s=0.1,
    exec_start_s=0.5,
    exec_end_s=4.5,
    requested_at=0,
    observed_at=0,
    horizon=40,
    chunk_size=50,
    executed=40,
    queued_s=0.0,
    compute_s=0.1,
    server_s=0.1,
    batch_size=1,
    tier="edge",
    engine="edge",
)


def test_an_action_counts_where_its_own_robots_judges_kept_their_word():
    # ten actions per second from 0.5 s on; no verdict of a picture between 1.5 and 3.5
    judged = [said(at) for at in (0.0, 0.5, 1.0, 1.5, 3.5, 4.0)]
    under = {"arm_1": rules(system2=None, monitor=None), "arm_2": rules(None, None, None, None)}
    unjudged = replace(ROUND, robot="arm_2")
    tasks = (task("arm_1"), task("arm_2"))
    both = judge(run(judged, given=under, tasks=tasks, rounds=(ROUND, unjudged)))
    # the last word before the gap holds for 0.5 + 0.5 s, until 2.5; the next one comes at 3.6
    assert both.rate.actions_per_s == pytest.approx(80 / 5)
    assert both.rate.qualified_per_s == pytest.approx((21 + 9 + 40) / 5)
    assert [slo.component for slo, _ in both.attained] == ["system1", "safety"]


def test_a_late_chunk_counts_against_the_robots_whose_objective_it_misses():
    strict = rules(system2=None, safety=None, monitor=None)
    lax = replace(
        strict, components={Component.SYSTEM1: ComponentRules(3000 * MS, Fallback.STOP_AND_RESEND)}
    )
    late = replace(ROUND, answered_s=1.0)
    given = {"arm_1": strict, "arm_2": lax}
    tasks = (task("arm_1"), task("arm_2"))
    found = judge(run(given=given, tasks=tasks, rounds=(late, replace(late, robot="arm_2"))))
    assert found.rate.share == pytest.approx(0.5)
    assert [a.met for _, a in found.attained] == [0, 1]


def test_a_fleet_that_was_given_nothing_to_do_has_kept_nothing_and_can_be_judged():
    idle = judge(replace(run(), tasks=()))
    assert [a.invocations for _, a in idle.attained] == [0, 0, 0, 0]
    assert (idle.rate.actions_per_s, idle.rate.qualified_per_s) == (0.0, 0.0)
    never_begun = judge(run())  # the safety service was never there
    assert (never_begun.rate.qualified_per_s, never_begun.attained[2][1].missing) == (0.0, 9)
    moved = replace(task("arm_1"), actions=40)
    with pytest.raises(ConfigError, match="without recorded rounds"):
        judge(run(tasks=(moved,)))


def test_a_component_that_was_not_recorded_is_refused():
    with pytest.raises(ConfigError, match="there are none of 'weather'"):
        judge(run(), [Slo("weather", 1.0)])
    with pytest.raises(ConfigError, match="none of 'safety', which only a bag has"):
        judge(replace(run(), pipeline=None), [SAFETY])
