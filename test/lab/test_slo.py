"""SLOs, qualified actions, ages of observations and causes of stalls, worked out by hand."""

import json
import math
from dataclasses import replace

import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.commands.slo import slo_command
from kairos_ros.lab.metrics.slo import (
    Invocation,
    Slo,
    attainment,
    parse_slo,
    system1_invocations,
    throughput,
)
from kairos_ros.lab.metrics.stalls import stall_causes
from kairos_ros.recording.runs.observation_age import observation_ages_s
from kairos_ros.recording.runs.pipeline import PipelineRecord, TransitionRecord
from kairos_ros.recording.runs.run import FleetRun, RoundRecord, TaskRecord
from kairos_ros.recording.runs.run_files import save_run
from kairos_ros.recording.runs.summary import summarise

NEVER = math.nan
FIRST = RoundRecord(
    robot="arm_1",
    task="a",
    round=1,
    attempts=1,
    requested_s=1.0,
    answered_s=1.4,
    exec_start_s=1.5,
    exec_end_s=2.5,
    requested_at=0,
    observed_at=0,
    horizon=10,
    chunk_size=50,
    executed=10,
    queued_s=0.1,
    compute_s=0.2,
    server_s=0.3,
    batch_size=1,
    tier="edge",
    engine="edge",
)
SECOND = replace(
    FIRST,
    round=2,
    requested_s=2.3,
    answered_s=3.2,
    exec_start_s=3.25,
    exec_end_s=4.25,
    requested_at=8,
    observed_at=8,
    queued_s=0.6,
    server_s=0.8,
)
TASK = TaskRecord(
    number=0,
    robot="arm_1",
    scene="reach-v3",
    seed=1,
    wanted_s=0.5,
    given_s=0.5,
    ended_s=4.25,
    outcome="succeeded",
    success=True,
    duration_s=3.25,
    first_wait_s=0.5,
    stalled_s=1.25,
    actions=20,
    round_latency_s=(0.4, 0.9),
    round_executed=(10, 10),
    task="a",
)
RUN = FleetRun(("arm_1",), 10.0, (TASK,), (), ((0.0, 5.0),), (FIRST, SECOND))


def test_only_actions_of_rounds_that_were_answered_in_time_are_qualified():
    both = throughput(RUN, [Slo("system1", 0.5)])
    assert (both.actions_per_s, both.qualified_per_s, both.share) == (4.0, 2.0, 0.5)
    assert throughput(RUN, [Slo("system1", 0.9 + 1e-9)]).qualified_per_s == 4.0
    assert throughput(RUN, [Slo("system1", 0.3)]).qualified_per_s == 0.0
    assert throughput(RUN, []).qualified_per_s == 4.0


def test_actions_after_the_last_task_was_given_do_not_count():
    run = replace(RUN, open_s=((0.0, 2.05),))
    # the actions of the first round start at 1.5, 1.6 … 2.4; six of them before 2.05
    assert throughput(run, []).actions_per_s == pytest.approx(6 / 2.05)


def test_without_rounds_the_latencies_of_tasks_decide():
    run = replace(RUN, rounds=())
    assert throughput(run, [Slo("system1", 0.5)]).qualified_per_s == 2.0
    assert attainment(Slo("system1", 0.5), system1_invocations(run)).share == 0.5


def test_attainment_counts_rounds_that_never_came_once_they_are_late():
    lost = replace(FIRST, round=3, requested_s=4.0, answered_s=NEVER, executed=0, horizon=0)
    run = replace(RUN, rounds=(*RUN.rounds, lost))
    # the task ended 0.25 s after the last request: with an SLO of 0.2 s that is late, with 0.5 open
    late = attainment(Slo("system1", 0.2), system1_invocations(run))
    undecided = attainment(Slo("system1", 0.5), system1_invocations(run))
    assert (late.invocations, late.met) == (3, 0)
    assert (undecided.invocations, undecided.met) == (2, 1)


def test_a_round_that_was_given_up_counts_once_it_had_waited_for_longer_than_promised():
    # the cell was unsafe 0.2 s and 0.8 s after the requests; the next round was asked for later
    lost = replace(FIRST, answered_s=NEVER, executed=0, horizon=0)
    rounds = [replace(lost, round=i, requested_s=at) for i, at in enumerate((1.0, 3.0), start=1)]
    stop = TransitionRecord(
        robot="arm_1", task="a", at_s=1.2, before="running", after="holding", reason="a hand",
        trigger="stop_and_replan", component="safety", effects=("stop", "replan"),
        reacted_s=0.01, frame_age_s=0.1,
    )  # fmt: skip
    resent = replace(stop, at_s=3.25, component="system1", effects=("stop", "resend"))
    moves = (stop, replace(stop, robot="arm_2", at_s=3.1), resent, replace(stop, at_s=3.8))
    run = replace(RUN, rounds=tuple(rounds), pipeline=PipelineRecord(moves=moves))
    found = system1_invocations(run)
    assert [i.waited_s for i in found] == pytest.approx([0.2, 0.8])
    attained = attainment(Slo("system1", 0.5), found)
    assert (attained.invocations, attained.met, attained.missing) == (1, 0, 1)


def test_without_rounds_one_that_was_given_up_is_not_counted():
    task = replace(TASK, round_latency_s=(0.4, NEVER, 0.9), round_executed=(10, 0, 10))
    run = replace(RUN, tasks=(task,), rounds=())
    attained = attainment(Slo("system1", 0.5), system1_invocations(run))
    assert (attained.invocations, attained.met, attained.missing) == (2, 1, 0)
    assert attained.p99_s == pytest.approx(0.895)
    assert throughput(run, [Slo("system1", 0.5)]).qualified_per_s == 2.0


def test_an_slo_is_held_when_99_of_100_meet_it():
    def of(late: int) -> bool:
        latencies = [0.1] * (100 - late) + [0.6] * late
        return attainment(
            Slo("safety", 0.5), [Invocation("arm_1", 0.0, s, True) for s in latencies]
        ).held

    assert of(late=1)
    assert not of(late=2)


def test_attainment_without_invocations_is_no_success():
    nothing = attainment(Slo("system1", 0.5), [])
    assert math.isnan(nothing.share)
    assert not nothing.held
    assert math.isnan(nothing.p99_s)


def test_actions_without_a_fresh_safety_check_are_not_qualified():
    # checks every 0.5 s, answers in 0.1 s, SLO 0.2 s; the one sent at 3.0 s took too long and those
    # after 3.5 s are missing
    checks = [Invocation("arm_1", 0.5 * i, 0.1, True) for i in range(6)]
    checks += [Invocation("arm_1", 3.0, 0.4, True), Invocation("arm_1", 3.5, 0.1, True)]
    slos = [Slo("system1", 1.0), Slo("safety", 0.2, period_s=0.5)]
    counted = throughput(RUN, slos, {"safety": checks})
    # round 1: valid all the time. Round 2, actions at 3.25 … 4.15: the answer of 2.5 holds until
    # 3.2; the late one never counts; the answer of 3.6 holds until 4.2: actions 3.65 … 4.15, six
    assert counted.qualified_per_s == pytest.approx((10 + 6) / 5.0)
    assert throughput(RUN, slos, {}).qualified_per_s == 0.0


def test_a_plan_holds_until_the_next_one_arrives():
    plans = [Invocation("arm_1", 0.0, 1.0, True), Invocation("arm_1", 1.0, 2.5, True)]
    slos = [Slo("system2", 2.0)]
    # the second plan came at 3.5, too late by its SLO: actions from then on do not count
    counted = throughput(RUN, slos, {"system2": plans})
    assert counted.qualified_per_s == pytest.approx((10 + 3) / 5.0)


@pytest.mark.parametrize(
    ("text", "slo"), [("system1=500ms", 0.5), ("safety=0.25s", 0.25), (" monitor=2s", 2.0)]
)
def test_an_slo_is_written_as_component_and_latency(text, slo):
    assert parse_slo(text) == Slo(text.strip().split("=")[0], pytest.approx(slo))


def test_an_slo_of_what_judges_by_itself_has_a_rate():
    assert parse_slo("safety=200ms@5hz") == Slo("safety", 0.2, pytest.approx(0.2))


@pytest.mark.parametrize(
    "text", ["", "500ms", "system1=", "system1=0ms", "system1=-1s", "a=1.2.3s", "a=1s@0hz"]
)
def test_a_malformed_slo_is_refused(text):
    with pytest.raises(ConfigError, match="such as system1=500ms"):
        parse_slo(text)


def test_the_age_of_an_observation_grows_along_its_chunk():
    ages = observation_ages_s([FIRST])
    assert ages == pytest.approx([0.5 + 0.1 * i for i in range(10)])
    assert summarise(RUN).observation_age_s.count == 20


def test_after_a_refetch_the_age_counts_from_the_newer_observation():
    again = replace(SECOND, attempts=2, observed_at=10)
    # observed after the last action of round 1 had ended, at 2.5 s
    assert observation_ages_s([again, FIRST])[0] == pytest.approx(3.25 - 2.5)


def test_a_stall_is_charged_to_queueing_before_compute_and_network():
    causes = stall_causes(RUN)
    # standing still from 2.5 to 3.25: 0.75 s, of which 0.6 s in the queue; compute takes the rest
    assert causes["first wait"] == pytest.approx(0.5)
    assert causes["queueing"] == pytest.approx(0.6)
    assert causes["compute"] == pytest.approx(0.15)
    assert sum(causes.values()) == pytest.approx(TASK.stalled_s)


def test_a_request_that_left_too_late_is_charged_to_the_robot():
    late = replace(SECOND, requested_s=2.8, answered_s=3.2, queued_s=0.0, server_s=0.2)
    causes = stall_causes(replace(RUN, rounds=(FIRST, late)))
    assert causes["late request"] == pytest.approx(0.3)
    assert causes["compute"] == pytest.approx(0.2)
    assert causes["network"] == pytest.approx(0.2)
    assert causes["robot"] == pytest.approx(0.05)


def test_time_before_a_refetch_is_charged_to_it():
    # the network takes 0.1 s, as in round 1; the server 0.3 s for the last attempt; 0.5 s before
    again = replace(SECOND, attempts=2, queued_s=0.1, server_s=0.3)
    causes = stall_causes(replace(RUN, rounds=(FIRST, again)))
    assert causes["asked again"] == pytest.approx(0.5)
    assert causes["queueing"] == pytest.approx(0.1)
    assert causes["compute"] == pytest.approx(0.15)


def test_waiting_for_an_answer_that_never_came_counts_until_the_task_ended():
    lost = replace(SECOND, answered_s=NEVER, exec_start_s=NEVER, exec_end_s=NEVER, executed=0)
    assert stall_causes(replace(RUN, rounds=(FIRST, lost)))["unanswered"] == pytest.approx(1.75)
    refused = replace(lost, reason="queue is full")
    assert stall_causes(replace(RUN, rounds=(FIRST, refused)))["refused"] == pytest.approx(1.75)


def test_a_wait_for_a_round_that_was_not_recorded_whole_has_no_known_cause():
    half = replace(SECOND, answered_s=NEVER)
    causes = stall_causes(replace(RUN, rounds=(FIRST, half)))
    assert causes["unknown"] == pytest.approx(0.75)


def test_a_run_without_rounds_has_no_causes():
    assert stall_causes(replace(RUN, rounds=())) == {}


def test_kairos_slo_judges_every_run_below_a_folder(tmp_path, capsys):
    save_run(tmp_path / "study" / "fifo", RUN, {})
    save_run(tmp_path / "study" / "ours", replace(RUN, rounds=(FIRST,)), {})
    slo_command([tmp_path / "study"], ["system1=500ms"], "json")
    fifo, ours = json.loads(capsys.readouterr().out)
    assert (fifo["run"], fifo["invocations"], fifo["met"], fifo["held"]) == ("fifo", 2, 1, False)
    assert (fifo["actions_per_s"], fifo["qualified_per_s"]) == (4.0, 2.0)
    assert (ours["run"], ours["held"], ours["qualified_share"]) == ("ours", True, 1.0)


def test_kairos_slo_refuses_a_component_that_was_not_recorded(tmp_path):
    save_run(tmp_path, RUN, {})
    with pytest.raises(ConfigError, match="none of 'safety'"):
        slo_command([tmp_path], ["safety=500ms"], "table")


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(ConfigError, match="neither a run"):
        slo_command([tmp_path], ["system1=1s"], "table")
