"""What the factory demo holds a fleet against: hand-made stories, and the promises of files."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component, Fallback, TaskState
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.lab.commands.demos.factory import check_simulated
from kairos_ros.lab.demos.factory.events import (
    EventKind,
    PlannedEvent,
    human_after_s,
    parse_events,
    promise,
)
from kairos_ros.lab.demos.factory.figure import finding, plot_factory
from kairos_ros.lab.demos.factory.ground_truth import GroundTruth, MonitorScore
from kairos_ros.lab.demos.factory.history import (
    NO_TASK,
    FactoryEvent,
    FleetHistory,
    SeenTransition,
)
from kairos_ros.lab.demos.factory.outcome import Result, outcome
from kairos_ros.lab.demos.factory.report import document, task_rows
from kairos_ros.lab.demos.factory.slo import AnswerLatencies
from kairos_ros.lab.metrics.reactions import ModeSpan
from kairos_ros.recording.runs.run import TaskRecord
from kairos_ros.robot.supervision.state_table import ROWS, Effect, Mode, Trigger

FLEETS = Path(__file__).parents[3] / "config" / "fleets"
FLEET = read_fleet(FLEETS / "factory.yaml", Known(adapters={"sim"}))
RULES = {name: FLEET.tasks[group.task].rules for name, group in FLEET.robots.items()}
RATES = dict.fromkeys(RULES, 30.0)
FIRST, SECOND = FLEET.robot_fleet[0].robots[0], FLEET.robot_fleet[1].robots[0]


def moment(at_s, trigger, before, robot=FIRST, component=None, reason="it is so"):
    row = ROWS[trigger, before]
    return SeenTransition(
        at_s,
        robot,
        before,
        row.target or before,
        trigger,
        component,
        reason,
        frozenset(row.effects),
        0.02,
        0.04,
    )


def history(*transitions):
    return FleetHistory(transitions=list(transitions))


def begun(at_s=1.0, robot=FIRST):
    return moment(at_s, Trigger.CLEAR, Mode.HOLDING, robot)


def warned(at_s, robot=FIRST, before=Mode.RUNNING):
    return moment(at_s, Trigger.STOP_AND_REPLAN, before, robot, Component.SAFETY)


def judged(event, told):
    return outcome(event, told, RULES, RATES)


INTRUDER = FactoryEvent(EventKind.INTRUDER, (FIRST,), "somebody enters", began_s=5.0, undone_s=9.0)


def test_a_robot_that_stops_in_time_and_goes_on_when_the_cell_is_empty_passes():
    one = judged(INTRUDER, history(begun(), warned(5.3), begun(9.4)))
    assert one.result is Result.PASS
    (did,) = one.reactions
    assert did.after_s == pytest.approx(0.3)
    assert (did.reacted_s, did.frame_age_s) == (0.02, 0.04)
    assert did.recovered_s == pytest.approx(0.4)
    assert did.did == "stop_and_replan: holding → running"


def test_the_promise_is_the_period_the_objective_and_one_control_period():
    safety = RULES[FIRST].components[Component.SAFETY]
    within_s = (safety.period_ns + safety.slo_ns) / 1e9 + 1 / 30
    assert promise(EventKind.INTRUDER, RULES[FIRST], 30.0).within_s == pytest.approx(within_s)
    late = judged(INTRUDER, history(begun(), warned(5 + within_s + 0.01), begun(9.4)))
    assert late.result is Result.LATE
    assert FIRST in late.why


def test_a_robot_that_is_not_stopped_or_moves_when_it_is_over_or_never_again_fails():
    assert judged(INTRUDER, history(begun())).result is Result.FAIL
    one = judged(INTRUDER, history(begun(), warned(5.3), begun(8.5), warned(9.1), begun(9.4)))
    assert (one.result, one.why) == (Result.FAIL, f"{FIRST} was not stopped")
    assert judged(INTRUDER, history(begun(), warned(5.3))).result is Result.FAIL, "never ran again"


def test_the_stop_that_counts_is_the_last_one_before_it_is_over():
    by_an_old_picture = history(begun(), warned(5.3), begun(5.4), warned(5.6), begun(9.4))
    one = judged(INTRUDER, by_an_old_picture)
    assert one.result is Result.PASS
    assert one.reactions[0].after_s == pytest.approx(0.6)
    went_on = judged(INTRUDER, history(begun(), warned(5.3), begun(7.0), warned(7.4), begun(9.4)))
    assert went_on.result is Result.LATE


def test_somebody_who_stays_is_a_case_for_a_human():
    event = replace(INTRUDER, kind=EventKind.LINGERER)
    again = [moment(10.0, Trigger.RELEASED, Mode.WAITING), begun(10.2)]
    called = moment(8.9, Trigger.STOP_AND_CALL_HUMAN, Mode.HOLDING, component=Component.SAFETY)
    one = judged(event, history(begun(), warned(5.3), called, *again))
    assert one.result is Result.PASS
    assert one.reactions[0].did.endswith("holding → waiting_for_human → running")
    assert judged(event, history(begun(), warned(5.3), begun(9.4))).why == f"{FIRST} called nobody"


def test_without_a_safety_service_every_robot_has_to_stop():
    event = FactoryEvent(EventKind.SAFETY, (FIRST, SECOND), "killed", began_s=5.0, undone_s=10.0)
    one = judged(event, history(begun(), begun(robot=SECOND), warned(5.4), begun(12.0)))
    assert one.result is Result.FAIL
    assert SECOND in one.why
    both = history(
        begun(), begun(robot=SECOND), warned(5.4), warned(5.5, SECOND), begun(12), begun(13, SECOND)
    )
    assert judged(event, both).result is Result.PASS


def test_a_knocked_object_is_found_in_the_same_task_only():
    event = FactoryEvent(EventKind.KNOCK, (FIRST,), "knocked", began_s=5.0, undone_s=5.0)
    failed = moment(7.0, Trigger.FAILED, Mode.RUNNING, component=Component.MONITOR)
    again = [
        moment(7.5, Trigger.RESET_DONE, Mode.RETRYING),
        moment(7.6, Trigger.CLEAR, Mode.HOLDING),
    ]
    one = judged(event, history(begun(), failed, *again))
    assert one.result is Result.PASS
    assert one.reactions[0].did == "task failed: retrying → holding → running"
    done = moment(6.0, Trigger.DONE, Mode.RUNNING, component=Component.MONITOR)
    assert judged(event, history(begun(), done, begun(6.5), failed, *again)).result is Result.FAIL


def test_a_slow_planner_stops_nobody_whose_fallback_is_the_last_plan():
    event = FactoryEvent(EventKind.PLANNER, (FIRST, SECOND), "slow", began_s=5.0, undone_s=8.0)
    went_on = moment(7.0, Trigger.USE_LAST_PLAN, Mode.RUNNING, component=Component.SYSTEM2)
    one = judged(event, history(begun(), begun(robot=SECOND), went_on))
    assert one.result is Result.PASS
    assert [did.robot for did in one.reactions] == [FIRST], "the other one did not ask meanwhile"
    assert judged(event, history(begun())).result is Result.FAIL


def test_modes_have_no_gaps_and_a_robot_between_tasks_is_told_from_one_that_holds():
    told = history(
        begun(1.0),
        warned(2.0),
        begun(3.0),
        moment(4.0, Trigger.DONE, Mode.RUNNING, component=Component.MONITOR),
        moment(4.5, Trigger.UNSAFE, Mode.HOLDING, component=Component.SAFETY),
        begun(5.0),
    )
    assert told.spans([FIRST], 6.0) == [
        ModeSpan(FIRST, 0.0, 1.0, NO_TASK),
        ModeSpan(FIRST, 1.0, 2.0, Mode.RUNNING),
        ModeSpan(FIRST, 2.0, 3.0, Mode.HOLDING),
        ModeSpan(FIRST, 3.0, 4.0, Mode.RUNNING),
        ModeSpan(FIRST, 4.0, 5.0, NO_TASK),
        ModeSpan(FIRST, 5.0, 6.0, Mode.RUNNING),
    ]
    assert told.running_s(FIRST, 1.5, 3.5) == pytest.approx(1.0)
    assert told.attempt_s(FIRST, 6.0) == pytest.approx(1.0)


def test_a_script_without_words_is_one_of_each_event_that_the_fleet_can_have():
    kinds = [planned.kind for planned in parse_events("", FLEET)]
    assert kinds == list(EventKind)
    unwatched = FLEET.model_copy(deep=True)
    for task in unwatched.tasks.values():
        object.__setattr__(task.components, "monitor", None)
        object.__setattr__(task.components, "system2", None)
        object.__setattr__(task.safety_and_slo_violation, "max_consecutive_safety_replan", 9999)
    kinds = [planned.kind for planned in parse_events("", unwatched)]
    assert kinds == [EventKind.INTRUDER, EventKind.SAFETY]
    for task in unwatched.tasks.values():
        object.__setattr__(task.components, "safety", None)
    with pytest.raises(ConfigError, match="nothing can happen"):
        parse_events("", unwatched)


def test_robots_take_turns_and_can_be_named():
    first, second = parse_events("intruder, intruder", FLEET)
    assert first.robots != second.robots
    assert parse_events(f"intruder:{SECOND}", FLEET) == [
        PlannedEvent(EventKind.INTRUDER, (SECOND,))
    ]
    assert parse_events("safety", FLEET) == [PlannedEvent(EventKind.SAFETY, tuple(FLEET.robots))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flood", "none of intruder"),
        (f"knock:{SECOND}", "a loose object"),
        ("intruder:nobody", "only to arm_1"),
        ("safety:arm_1", "happens to all"),
    ],
)
def test_an_event_that_cannot_happen_is_refused_with_what_it_needs(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_events(text, FLEET)


def test_a_fleet_that_is_not_simulated_or_has_no_scene_is_refused():
    check_simulated(FLEET)
    real = FLEET.model_copy(deep=True)
    object.__setattr__(real.robot_fleet[0], "adapter", "lerobot")
    with pytest.raises(ConfigError, match="simulated robots only"):
        check_simulated(real)
    blind = FLEET.model_copy(deep=True)
    object.__setattr__(next(iter(blind.tasks.values())), "scene", "")
    with pytest.raises(ConfigError, match="names no scene"):
        check_simulated(blind)


def test_how_long_somebody_may_stay_is_counted_in_verdicts():
    rules = RULES[SECOND]
    period_s = rules.components[Component.SAFETY].period_ns / 1e9
    assert human_after_s(rules) == (rules.max_consecutive_safety_replan + 1) * period_s


def test_answers_are_in_time_by_the_objective_of_their_own_robots_class():
    answers = AnswerLatencies()
    slo_s = RULES[FIRST].components[Component.SAFETY].slo_ns / 1e9
    for factor in (0.1, 0.2, 0.3, 2.0):
        answers.add(Component.SAFETY, FIRST, factor * slo_s)
    silent = moment(5, Trigger.STOP_AND_REPLAN, Mode.RUNNING, FIRST, Component.SAFETY)
    told = history(begun(), replace(silent, reason="safety is overdue"), warned(6))
    task = TaskRecord(0, FIRST, "", 0, 0, 0, 9, "succeeded", True, round_latency_s=(0.1, 9.0))
    task = replace(task, round_latency_s=(*task.round_latency_s, math.nan))  # one was given up
    shares = {one.component: one for one in answers.shares(RULES, told, [task])}
    assert (shares[Component.SAFETY].answers, shares[Component.SAFETY].in_time) == (4, 0.75)
    assert shares[Component.SAFETY].missed == 1
    assert (shares[Component.SYSTEM1].answers, shares[Component.SYSTEM1].in_time) == (2, 0.5)
    assert math.isnan(shares[Component.MONITOR].p50_s)


def test_the_monitor_is_scored_by_what_the_simulator_knew_of_the_same_picture():
    truth = GroundTruth()
    pictures = [(FIRST, "1", second, 7) for second in range(4)]
    states = (TaskState.ONGOING, TaskState.FAILED, TaskState.FAILED, TaskState.DONE)
    for picture, state in zip(pictures, states, strict=True):
        truth.know(picture, state, at_s=float(picture[2]))
    said = (TaskState.FAILED, TaskState.FAILED, TaskState.DONE)
    for picture, state in zip(pictures, said, strict=False):
        truth.say(picture, state)
    truth.say((FIRST, "2", 0, 7), TaskState.DONE)  # nobody knows that picture
    (score,) = truth.scores({"first": [FIRST], "second": [SECOND]})
    assert score == MonitorScore("first", 3, 1, 1, 1, 2, 1)
    assert truth.lost(FIRST, 2.0)
    assert not truth.lost(FIRST, 2.5)
    assert not truth.lost(SECOND, 0.0)


def test_the_report_counts_retries_and_humans_and_its_json_has_no_nan(tmp_path):
    told = history(
        begun(),
        moment(2, Trigger.FAILED, Mode.RUNNING, component=Component.MONITOR),
        moment(3, Trigger.STOP_AND_CALL_HUMAN, Mode.RETRYING, component=Component.SAFETY),
    )
    assert told.transitions[-1].effects >= {Effect.CALL_HUMAN}
    rows = task_rows({"first": [FIRST], "second": [SECOND]}, [], told)
    assert [(row["retries"], row["humans"]) for row in rows] == [(1, 1), (0, 0)]
    one = judged(INTRUDER, history(begun(), warned(5.3), begun(9.4)))
    slow = judged(FactoryEvent(EventKind.PLANNER, (FIRST,), "slow", 5.0, 8.0), history(begun()))
    written = document([one, slow], AnswerLatencies().shares(RULES, told, []), rows, [], told)
    assert written["events"][1]["within_s"] == {FIRST: None}
    assert written["components"][0]["p50_s"] is None
    assert finding([one, slow]).startswith("1 of 2 events")
    plot_factory(tmp_path / "factory.png", list(RULES), told, [one, slow], 10.0)
    assert (tmp_path / "factory.png").stat().st_size > 10_000


def test_fallbacks_of_the_factory_are_those_that_its_promises_name():
    for robot, rules in RULES.items():
        assert promise(EventKind.PLANNER, rules, 30.0).fallback is Fallback.USE_LAST_PLAN
        assert promise(EventKind.SAFETY, rules, 30.0).fallback is (
            rules.components[Component.SAFETY].fallback
        ), robot
