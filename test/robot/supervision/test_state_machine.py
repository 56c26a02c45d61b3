"""The robot's state machine: what it does about every violation, and what it never does."""

import pytest
from task_rules import MONITOR, MS, SAFETY, SYSTEM1, SYSTEM2, rules

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import FALLBACKS, Fallback, TaskState
from kairos_ros.robot.supervision.state import State, wants_actions
from kairos_ros.robot.supervision.state_events import (
    CellVerdict,
    ComponentAnswered,
    ComponentAsked,
    Progress,
    Release,
    ResetDone,
    ResetFailed,
    SafeStateMissed,
    SafeStateReached,
    TaskEnded,
    TaskStarted,
    Tick,
)
from kairos_ros.robot.supervision.state_machine import step
from kairos_ros.robot.supervision.state_table import (
    HOLDING,
    RETRYING,
    RETURNING,
    RUNNING,
    TABLE,
    WAITING,
    Effect,
    Trigger,
)

STOP, RESEND, REPLAN = Effect.STOP, Effect.RESEND, Effect.REPLAN


class Bench:
    """A state machine that has begun a task and has its first plan, with its clock in ms and what
    it did last."""

    def __init__(self, task_rules=None, *, running=True):
        self.rules = task_rules or rules()
        self.state = State()
        self.ms = 1000
        self.all = []
        if running:
            self.do(TaskStarted)
            self.do(ComponentAnswered, SYSTEM2)
            self.safe()
            assert self.mode is RUNNING

    def do(self, event, *details, after=0, **named):
        """What the event made it do: the effects of all its transitions."""
        self.ms += after
        done = step(self.rules, self.state, event(self.ms * MS, *details, **named))
        self.state = done.state
        self.last = done.transitions
        self.all += done.transitions
        self.dropped = done.dropped
        return [effect for transition in done.transitions for effect in transition.effects]

    def safe(self, after=0, source=""):
        return self.do(CellVerdict, (self.ms + after) * MS, True, source, after=after)

    def unsafe(self, after=0, source=""):
        return self.do(CellVerdict, (self.ms + after) * MS, False, source, "a hand", after=after)

    def says(self, state, after=1):
        return self.do(Progress, (self.ms + after) * MS, state, after=after)

    @property
    def mode(self):
        return self.state.mode


def test_a_robot_without_a_task_holds_and_begins_when_the_cell_is_known_to_be_safe():
    bench = Bench(rules(system2=None), running=False)
    bench.do(TaskStarted)
    assert bench.mode is HOLDING
    bench.safe()
    assert bench.mode is RUNNING


def test_a_robot_without_a_safety_component_begins_at_once():
    bench = Bench(rules(safety=None, system2=None), running=False)
    bench.do(TaskStarted)
    assert bench.mode is RUNNING


def test_before_its_first_plan_a_robot_holds_and_misses_no_judge():
    bench = Bench(running=False)
    bench.safe()
    bench.do(TaskStarted)
    bench.do(ComponentAsked, SYSTEM2)
    bench.do(Tick, after=999)
    assert bench.mode is HOLDING
    assert not bench.all, "the last safe verdict is 999 ms old, and nobody could judge since"
    bench.do(ComponentAnswered, SYSTEM2)
    bench.do(Tick, after=999)
    assert not bench.all, "the judges have a whole deadline from the plan on"
    bench.safe()
    assert bench.mode is RUNNING


def test_judges_are_missed_as_soon_as_no_first_plan_is_waited_for_any_longer():
    bench = Bench(running=False)
    bench.do(TaskStarted)
    bench.do(ComponentAsked, SYSTEM2)
    bench.do(Tick, after=1001)
    assert [t.trigger for t in bench.all] == [Trigger.USE_LAST_PLAN]
    assert bench.do(Tick, after=1001) == [STOP, REPLAN]
    assert "safety is overdue" in bench.last[0].reason


def test_an_unsafe_verdict_stops_and_replans_and_a_safe_one_and_a_plan_let_it_go_on():
    bench = Bench()
    assert bench.unsafe(after=100) == [STOP, REPLAN]
    assert bench.mode is HOLDING
    bench.do(ComponentAsked, SYSTEM2)
    assert bench.safe(after=100) == []
    assert bench.mode is HOLDING  # the new plan is not there yet
    assert not wants_actions(bench.rules, bench.state)
    bench.do(ComponentAnswered, SYSTEM2)
    assert bench.mode is RUNNING


def test_a_replan_has_the_whole_slo_also_where_a_plan_was_under_way():
    bench = Bench()
    bench.do(ComponentAsked, SYSTEM2)
    bench.unsafe(after=700)
    bench.do(ComponentAsked, SYSTEM2)
    bench.safe(after=999)
    assert Trigger.USE_LAST_PLAN not in [t.trigger for t in bench.all]


def test_a_plan_that_comes_late_after_a_replan_is_replaced_by_the_last_one():
    bench = Bench()
    bench.unsafe(after=100)
    bench.do(ComponentAsked, SYSTEM2)
    for _ in range(3):
        bench.safe(after=400)
    assert bench.mode is RUNNING
    assert Trigger.USE_LAST_PLAN in [t.trigger for t in bench.all]


@pytest.mark.parametrize(
    ("fallback", "mode", "effects"),
    [
        (Fallback.STOP_AND_RESEND, HOLDING, [STOP, RESEND]),
        (Fallback.STOP_AND_REPLAN, HOLDING, [STOP, REPLAN]),
        (Fallback.RETURN_TO_SAFE_STATE, RETURNING, [STOP, Effect.RETURN]),
        (Fallback.STOP_AND_CALL_HUMAN, WAITING, [STOP, Effect.CALL_HUMAN]),
    ],
)
def test_every_fallback_of_safety_answers_a_warning_and_a_missing_verdict_alike(
    fallback, mode, effects
):
    warned, missed = Bench(rules(safety=fallback)), Bench(rules(safety=fallback))
    assert warned.unsafe(after=1) == effects
    assert missed.do(Tick, after=1001) == effects
    assert warned.mode is missed.mode is mode


def test_a_verdict_is_missing_when_the_newest_judged_frame_is_older_than_period_plus_slo():
    bench = Bench()
    bench.do(Tick, after=1000)
    assert bench.mode is RUNNING
    assert bench.do(Tick, after=1) == [STOP, REPLAN]
    assert "safety is overdue" in bench.last[0].reason


def test_the_age_of_a_verdict_counts_from_its_frame_not_from_its_arrival():
    bench = Bench()
    bench.do(CellVerdict, (bench.ms + 100) * MS, True, after=500)
    bench.do(Tick, after=600)
    assert bench.mode is RUNNING
    assert bench.do(Tick, after=1) == [STOP, REPLAN]


def test_missing_verdicts_beyond_the_limit_call_a_human():
    bench = Bench()
    effects = [bench.do(Tick, after=ms) for ms in (1001, 501, 501)]
    assert effects == [[STOP, REPLAN], [STOP, REPLAN], [STOP, Effect.CALL_HUMAN]]
    assert "3 times in a row, 2 are allowed" in bench.last[0].reason


def test_a_judge_that_is_always_a_little_late_ends_with_a_human_although_it_always_answers():
    bench = Bench(rules(system2=None))
    for _ in range(3):
        bench.do(Tick, after=1001)
        bench.do(CellVerdict, (bench.ms - 990) * MS, True)
    assert bench.mode is WAITING


def test_an_answer_in_time_ends_a_series_of_violations():
    bench = Bench(rules(system2=None, monitor=None))
    for _ in range(6):
        bench.do(Tick, after=1001)
        bench.safe()
        bench.safe(after=100)
    assert bench.mode is RUNNING
    assert not bench.state.slo_violations


def test_violations_of_different_components_are_different_series():
    bench = Bench(rules(safety=None))
    for _ in range(2):
        bench.do(ComponentAsked, SYSTEM1)
        bench.do(Tick, after=201)
        bench.do(ComponentAnswered, SYSTEM1)
    bench.do(ComponentAsked, SYSTEM2)
    bench.do(Tick, after=1001)
    assert bench.mode is RUNNING
    assert bench.state.slo_violations == {SYSTEM1: 2, SYSTEM2: 1}


def test_unsafe_verdicts_beyond_the_limit_call_a_human():
    bench = Bench()
    effects = [bench.unsafe(after=100) for _ in range(4)]
    assert effects == [[STOP, REPLAN]] * 3 + [[STOP, Effect.CALL_HUMAN]]
    assert bench.last[0].reason == "unsafe: a hand; 4 in a row, 3 are allowed"


def test_a_safe_verdict_ends_a_series_of_unsafe_ones():
    bench = Bench()
    for _ in range(3):
        bench.unsafe(after=100)
    bench.safe(after=100)
    assert bench.state.unsafe == 0


def test_a_limit_of_0_escalates_at_once():
    bench = Bench(rules(max_consecutive_safety_replan=0))
    assert bench.unsafe(after=1) == [STOP, Effect.CALL_HUMAN]


def test_where_two_safety_services_disagree_unsafe_wins_for_as_long_as_it_is_recent():
    bench = Bench(rules(system2=None))
    bench.safe(after=10, source="a")
    bench.unsafe(after=10, source="b")
    bench.safe(after=10, source="a")
    assert bench.mode is HOLDING
    assert bench.state.unsafe == 1
    bench.safe(after=900, source="a")
    bench.safe(after=100, source="a")  # b's verdict is overdue by now
    assert bench.mode is RUNNING


@pytest.mark.parametrize(
    ("frame_ms", "why"), [(-1, "old_frame"), (-2000, "old_frame"), (500, "future_frame")]
)
def test_a_verdict_of_an_old_or_impossible_frame_is_dropped_with_its_reason(frame_ms, why):
    bench = Bench()
    bench.do(CellVerdict, (bench.ms + frame_ms) * MS, False)
    assert (bench.mode, bench.dropped) == (RUNNING, why)


def test_a_look_whose_oldest_picture_is_the_same_can_only_warn():
    """What is new in it is in the picture of another camera."""
    bench = Bench()
    look_ns = bench.ms * MS
    assert bench.do(CellVerdict, look_ns, False, after=100) == [STOP, REPLAN]
    for safe in (True, False):
        bench.do(CellVerdict, look_ns, safe, after=10)
        assert (bench.mode, bench.dropped) == (HOLDING, "old_frame")
    assert bench.state.unsafe == 1


def test_progress_of_a_frame_from_before_the_attempt_is_dropped():
    bench = Bench()
    for frame_ms in (bench.ms - 1, bench.ms):
        bench.do(Progress, frame_ms * MS, TaskState.DONE)
        assert (bench.mode, bench.dropped) == (RUNNING, "old_frame")


def test_done_stops_the_arm_and_ends_the_task():
    bench = Bench()
    assert bench.says(TaskState.DONE) == [STOP, Effect.SUCCEED]
    assert bench.mode is HOLDING
    assert not bench.state.task


def test_failed_retries_after_a_reset_until_the_budget_is_used_up():
    bench = Bench()
    for _ in range(2):
        assert bench.says(TaskState.FAILED) == [STOP, Effect.RESET]
        assert bench.mode is RETRYING
        bench.do(ResetDone, after=100)
        assert bench.mode is RUNNING
    assert bench.says(TaskState.FAILED) == [STOP, Effect.CALL_HUMAN]
    assert "all 2 retries are used up" in bench.last[0].reason


def test_a_failure_seen_while_the_cell_is_unsafe_moves_nothing():
    bench = Bench()
    bench.unsafe(after=1)
    assert bench.says(TaskState.FAILED) == []
    assert bench.mode is HOLDING


def test_an_intruder_during_a_reset_stops_it_and_it_is_done_again_when_the_cell_is_safe():
    bench = Bench(rules(system2=None))
    bench.says(TaskState.FAILED)
    assert bench.unsafe(after=10) == [STOP, REPLAN]
    assert bench.mode is HOLDING
    assert bench.safe(after=10) == [Effect.RESET]
    assert bench.mode is RETRYING
    assert bench.state.retries == 1


def test_verdicts_that_nobody_could_hear_during_a_reset_are_no_violation():
    bench = Bench()
    bench.says(TaskState.FAILED)
    bench.do(ResetDone, after=5000)
    assert bench.mode is HOLDING
    assert not bench.state.slo_violations
    bench.safe(after=100)
    assert bench.mode is RUNNING


def test_a_reset_that_fails_fails_the_task():
    bench = Bench()
    bench.says(TaskState.FAILED)
    assert bench.do(ResetFailed, "no scene") == [STOP, Effect.FAIL]
    assert not bench.state.task


def test_late_actions_stop_the_arm_ask_again_and_go_on_with_the_answer():
    bench = Bench()
    bench.do(ComponentAsked, SYSTEM1)
    assert bench.do(Tick, after=201) == [STOP, RESEND]
    assert wants_actions(bench.rules, bench.state)
    bench.do(ComponentAsked, SYSTEM1)
    bench.do(ComponentAnswered, SYSTEM1, after=100)
    assert bench.mode is RUNNING


def test_no_actions_are_asked_for_while_the_cell_is_unsafe():
    bench = Bench(rules(system2=None))
    bench.do(ComponentAsked, SYSTEM1)
    bench.do(Tick, after=201)
    bench.unsafe()
    assert not wants_actions(bench.rules, bench.state)


def test_a_late_plan_changes_nothing_but_the_count_and_the_record():
    bench = Bench(rules(safety=None))
    bench.do(ComponentAsked, SYSTEM2)
    assert bench.do(Tick, after=1001) == []
    assert bench.mode is RUNNING
    assert [t.trigger for t in bench.last] == [Trigger.USE_LAST_PLAN]


def test_a_late_monitor_stops_the_arm_until_it_has_judged_again():
    bench = Bench(rules(safety=None))
    assert bench.do(Tick, after=4001) == [STOP, RESEND]
    assert bench.last[0].component is MONITOR
    bench.says(TaskState.ONGOING)
    assert bench.mode is RUNNING


def test_on_the_way_to_the_safe_state_a_missing_monitor_is_no_violation():
    bench = Bench(rules(safety=None, system1=Fallback.RETURN_TO_SAFE_STATE))
    bench.do(ComponentAsked, SYSTEM1)
    bench.do(Tick, after=201)
    bench.do(Tick, after=10_000)
    assert bench.mode is RETURNING


def test_at_the_safe_state_the_arm_holds_until_the_cell_is_safe():
    bench = Bench(rules(safety=Fallback.RETURN_TO_SAFE_STATE))
    bench.unsafe(after=1)
    assert bench.do(SafeStateReached, after=300) == [STOP]
    assert bench.mode is HOLDING
    bench.safe(after=10)
    assert bench.mode is RUNNING


def test_without_a_way_to_the_safe_state_a_human_is_called():
    bench = Bench(rules(safety=Fallback.RETURN_TO_SAFE_STATE))
    bench.unsafe(after=1)
    assert bench.do(SafeStateMissed, "the arm is stuck") == [STOP, Effect.CALL_HUMAN]
    assert bench.mode is WAITING


def test_only_safety_itself_may_move_the_arm_while_the_cell_is_unsafe():
    bench = Bench(rules(system2=None, monitor=Fallback.RETURN_TO_SAFE_STATE))
    for _ in range(2):
        bench.unsafe(after=900)
    bench.safe(after=900)
    bench.unsafe(after=900)
    bench.do(Tick, after=500)
    assert bench.last[-1].component is MONITOR
    assert bench.mode is HOLDING


def test_an_escalation_that_moves_first_ends_with_a_human_at_the_safe_state():
    bench = Bench(
        rules(max_consecutive_safety_replan=0, on_max_violation=Fallback.RETURN_TO_SAFE_STATE)
    )
    assert bench.unsafe(after=1) == [STOP, Effect.RETURN]
    assert bench.do(SafeStateReached, after=300) == [STOP, Effect.CALL_HUMAN]
    assert bench.mode is WAITING


@pytest.mark.parametrize(
    ("event", "after"), [((TaskEnded, "canceled"), 1), ((Tick,), 1001)], ids=["ended", "overdue"]
)
def test_an_escalation_that_is_interrupted_on_its_way_calls_the_human_there(event, after):
    bench = Bench(rules(max_task_retries=0, on_max_task_retries=Fallback.RETURN_TO_SAFE_STATE))
    bench.says(TaskState.FAILED)
    assert bench.mode is RETURNING
    bench.do(*event, after=after)
    assert bench.mode is WAITING


def test_a_waiting_robot_is_released_by_a_name_and_a_reason_and_gets_every_budget_anew():
    bench = Bench(rules(max_task_retries=0, max_consecutive_safety_replan=0))
    bench.says(TaskState.FAILED)
    ended, begun, planned = (TaskEnded, "canceled"), (TaskStarted,), (ComponentAnswered, SYSTEM2)
    for event in (ended, begun, planned, (ComponentAnswered, SYSTEM1), (ResetDone,)):
        bench.do(*event, after=100)
        bench.safe()
        assert bench.mode is WAITING
    bench.do(Release, "Ada", "put the puck back")
    assert bench.mode is RUNNING
    assert bench.last[0].reason == "Ada: put the puck back"
    assert (bench.state.retries, bench.state.unsafe, bench.state.slo_violations) == (0, 0, {})


def test_a_released_robot_still_holds_until_the_cell_is_safe():
    bench = Bench(rules(safety=Fallback.STOP_AND_CALL_HUMAN))
    bench.unsafe(after=1)
    bench.do(Release, "Ada", "looked at it")
    assert bench.mode is HOLDING


@pytest.mark.parametrize(
    ("name", "reason"), [("", "why"), ("  ", "why"), ("Ada", ""), ("Ada", "\n")]
)
def test_a_release_without_a_name_or_a_reason_is_refused(name, reason):
    with pytest.raises(ConfigError, match="a release needs a"):
        Release(0, name, reason)


def test_a_release_of_a_robot_that_does_not_wait_is_dropped():
    bench = Bench()
    bench.do(Release, "Ada", "why not")
    assert (bench.mode, bench.dropped) == (RUNNING, "nobody_waits")


def test_an_unsafe_verdict_stops_also_a_robot_without_a_task_and_one_that_waits():
    idle = Bench(running=False)
    assert idle.unsafe() == [STOP]
    waiting = Bench(rules(safety=Fallback.STOP_AND_CALL_HUMAN))
    waiting.unsafe(after=1)
    assert waiting.unsafe(after=1) == [STOP]
    assert waiting.mode is WAITING


def test_the_table_has_one_row_per_trigger_and_mode_and_a_trigger_for_every_fallback():
    pairs = [(row.trigger, mode) for row in TABLE for mode in row.sources]
    assert len(pairs) == len(set(pairs))
    assert {row.trigger for row in TABLE} == set(Trigger)
    assert {Trigger(fallback.value) for fallback in Fallback} <= set(Trigger)
    assert all(Fallback.USE_LAST_PLAN not in FALLBACKS[c] for c in (SYSTEM1, SAFETY, MONITOR))


def test_only_a_release_leaves_waiting_for_human_and_only_clear_begins_to_run():
    out = [
        row.trigger for row in TABLE if WAITING in row.sources and row.target not in (None, WAITING)
    ]
    assert out == [Trigger.RELEASED]
    assert [row.trigger for row in TABLE if row.target is RUNNING] == [Trigger.CLEAR]


def test_every_row_that_leaves_running_stops_the_arm_first():
    leaving = [row for row in TABLE if RUNNING in row.sources and row.target is not None]
    assert leaving
    assert all(row.effects[0] is STOP for row in leaving)


def test_a_plan_does_not_let_an_older_picture_speak_for_the_cell():
    bench = Bench(running=False)
    bench.do(TaskStarted)
    bench.unsafe(after=50)
    bench.do(ComponentAnswered, SYSTEM2, after=10)
    bench.do(CellVerdict, (bench.ms - 40) * MS, True, "", after=10)
    assert bench.dropped == "old_frame"
    assert bench.mode is HOLDING
    bench.safe(after=10)
    assert bench.mode is RUNNING


def test_a_verdict_of_before_the_plan_does_not_move_the_arm():
    bench = Bench(running=False)
    bench.do(TaskStarted)
    bench.safe(after=10)
    bench.do(ComponentAnswered, SYSTEM2, after=10)
    assert bench.mode is HOLDING
    bench.safe(after=10)
    assert bench.mode is RUNNING
