"""A robot under the rules of its task: when it stops, what it drops, and how it goes on."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from task_rules import MONITOR, MS, SAFETY, SYSTEM1, SYSTEM2, rules

from kairos_ros.core.exchange import Actions, Answer
from kairos_ros.core.execution.effects import Act, Finished, Hold, Send
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.loop import Loop, LoopConfig
from kairos_ros.core.execution.task import Task
from kairos_ros.core.pipeline import Fallback, TaskState
from kairos_ros.robot.supervision.state_events import (
    CellVerdict,
    Progress,
    Release,
    ResetDone,
    TaskEnded,
    TaskStarted,
)
from kairos_ros.robot.supervision.state_table import HOLDING, RETRYING, RETURNING, RUNNING, WAITING
from kairos_ros.robot.supervision.supervisor import (
    HOMING_LIMIT_NS,
    AskPlan,
    Moved,
    ResetBody,
    Supervisor,
)

PERIOD = 33 * MS
HOME = -1.0
"""Value of an action on the way to the safe state."""
CONFIG = LoopConfig(
    robot="arm_1",
    session="now",
    action_dim=1,
    period_ns=PERIOD,
    margin_ns=0,
    timeout_ns=20 * PERIOD,
    timeout_max_ns=80 * PERIOD,
)
NO_PLANNER = rules(system2=None)


class Bench:
    """A supervised robot with its clock, that executes a task. An action's value is the position
    (actions executed so far) that it was made for."""

    def __init__(self, task_rules=NO_PLANNER, *, way_home=4, safe=True, task=None, lead=0):
        self.loop = Loop(CONFIG, LatencyEstimate(network_ns=0, engine_ns=lead * PERIOD))
        self.supervisor = Supervisor(self.loop, task_rules)
        self.now = 1000 * MS
        self.way_home = way_home
        self.position = 0
        self.motions = []
        self.sent = []
        self.observed = {}
        self.plans = []
        self.transitions = []
        self.resets = 0
        self.result = None
        if safe and SAFETY in task_rules.components:
            self.judge()
        self.loop.start(task or Task("1", "reach"), self.now)
        self.feed(TaskStarted(self.now))

    @property
    def mode(self):
        return self.supervisor.state.mode

    def feed(self, event):
        self.note(self.supervisor.feed(event))

    def judge(self, safe=True):
        self.now += 1  # every verdict is of another frame
        self.feed(CellVerdict(self.now, self.now, safe))

    def note(self, effects):
        for effect in effects:
            match effect:
                case Send(request):
                    self.sent.append(request)
                    self.observed[request.id.round, request.id.attempt] = self.position
                case Finished(result):
                    self.result = result
                    self.feed(TaskEnded(self.now, result.outcome))
                case Act(action) if action[0] == HOME:
                    self.way_home -= 1
                    self.motions.append(HOME)
                case Act(action):
                    assert action[0] == self.position
                    self.position += 1
                    self.motions.append(float(action[0]))
                case Hold():
                    self.motions.append(None)
                case Moved(transition):
                    self.transitions.append(transition)
                case AskPlan(_, number, _):
                    self.plans.append(number)
                case ResetBody():
                    self.resets += 1

    def tick(self, times=1):
        for _ in range(times):
            homeward = None if self.way_home is None else self.homeward
            self.note(self.supervisor.tick(self.now, lambda action: action, homeward))
            self.now += PERIOD

    def homeward(self):
        return np.array([HOME], np.float32) if self.way_home > 0 else None

    def plan(self, text="reach", number=None):
        self.note(self.supervisor.planned(number or self.plans[-1], text, self.now))

    def answer(self, horizon=10, *, back=0):
        """Answers the newest request, or one before."""
        request = self.sent[-1 - back]
        start = self.observed[request.id.round, request.id.attempt]
        chunk = np.arange(start, start + horizon, dtype=np.float32)[:, None]
        answer = Answer(request.id, Actions(chunk, np.ones(horizon, np.float32)))
        self.note(self.supervisor.receive(answer, self.now))


def running(task_rules=NO_PLANNER, **options):
    """A bench that has executed two actions of ten, by its first plan if it has a planner."""
    bench = Bench(task_rules, **options)
    bench.tick()
    if bench.plans:
        bench.plan()
        bench.judge()
        bench.tick()
    bench.answer()
    bench.tick(2)
    assert bench.motions[-2:] == [0, 1]
    return bench


def test_nothing_is_asked_and_nothing_moves_before_the_first_safe_verdict():
    bench = Bench(safe=False)
    bench.tick(10)
    assert (bench.sent, set(bench.motions)) == ([], {None})
    bench.judge()
    bench.tick()
    assert len(bench.sent) == 1


def test_an_unsafe_verdict_holds_in_the_very_next_period_and_drops_the_buffer():
    bench = running()
    bench.judge(safe=False)
    bench.tick(3)
    assert bench.motions[-3:] == [None] * 3
    assert bench.loop.execution(bench.now).remaining == 0
    assert len(bench.sent) == 1  # no actions are asked for meanwhile


def test_after_a_stop_a_new_round_is_asked_for_with_a_fresh_observation():
    bench = running()
    bench.judge(safe=False)
    bench.tick(3)
    bench.judge()
    bench.tick()
    assert [(r.id.round, r.id.attempt) for r in bench.sent] == [(1, 0), (2, 0)]
    bench.answer()
    bench.tick()
    assert bench.motions[-1] == 2


def test_actions_that_were_under_way_when_the_arm_was_stopped_are_never_executed():
    bench = running()
    bench.tick(8)  # the buffer is used up, the next request is out
    assert bench.sent[-1].id.round == 2
    bench.judge(safe=False)
    bench.answer()
    bench.judge()
    bench.tick()
    assert bench.motions[-1] is None
    assert bench.loop.dropped == {"stopped": 1}
    assert bench.sent[-1].id.round == 3


def test_a_chunk_that_waits_behind_the_running_one_is_dropped_by_a_stop_too():
    bench = running(lead=5)
    bench.tick(4)
    bench.answer()
    assert bench.sent[-1].id.round == 2
    bench.judge(safe=False)
    bench.judge()
    bench.tick(2)
    assert bench.motions[-2:] == [None, None]
    assert bench.sent[-1].id.round == 3


def test_an_abandoned_round_is_told_as_one_that_executed_nothing():
    bench = running()
    bench.tick(8)
    bench.judge(safe=False)
    bench.judge()
    bench.tick()
    bench.answer(horizon=3)
    bench.tick(4)
    result = bench.loop.finish("canceled", bench.now).result
    assert result.round_executed == (10, 0, 3)
    assert len(result.round_latency_ns) == len(result.round_started_ns) == 3
    assert [math.isnan(ns) for ns in result.round_latency_ns] == [False, True, False]


def test_late_actions_stop_the_arm_and_are_asked_for_again_and_either_answer_serves():
    bench = running(rules(safety=None, system2=None))
    bench.tick(8)
    bench.tick(7)  # 8 periods without an answer: 264 ms
    assert bench.mode is HOLDING
    assert [(r.id.round, r.id.attempt) for r in bench.sent] == [(1, 0), (2, 0), (2, 1)]
    bench.answer(back=1)
    bench.tick()
    assert bench.mode is RUNNING
    assert bench.motions[-1] == 10


def test_an_answer_that_comes_in_the_same_period_as_its_deadline_passes_is_still_used():
    bench = running(rules(safety=None, system2=None))
    bench.tick(8)
    bench.now += 250 * MS
    bench.answer()
    assert bench.mode is RUNNING
    bench.tick()
    assert bench.motions[-1] == 10
    assert [t.after for t in bench.transitions[-2:]] == [HOLDING, RUNNING]


def test_a_plan_is_asked_for_at_the_start_and_then_every_so_many_rounds():
    bench = Bench(rules(safety=None, monitor=None, system2_ratio=3))
    bench.tick()
    bench.plan()
    for _ in range(7):
        bench.tick(2)
        bench.answer(horizon=1)
    assert (bench.sent[-1].id.round, bench.plans) == (7, [1, 2, 3])


def test_a_plan_changes_the_instruction_of_the_requests_that_follow_and_not_the_task():
    bench = running(rules(safety=None, monitor=None, system2_ratio=9))
    bench.tick(6)
    bench.plan("open the left drawer")
    assert bench.loop.instruction == "open the left drawer"
    bench.tick(2)
    assert [r.instruction for r in bench.sent] == ["reach", "open the left drawer"]
    assert bench.loop.finish("canceled", bench.now).result.task.instruction == "reach"


def test_only_the_answer_to_the_newest_question_is_a_plan():
    bench = Bench(rules(safety=None))
    bench.tick()
    bench.plan("nonsense", number=7)
    bench.plan(" ")
    assert bench.loop.dropped == {"old_plan": 1, "empty_plan": 1}
    assert not bench.sent


def test_a_goal_in_free_words_is_planned_before_actions_are_asked_for():
    bench = Bench(rules(), safe=False, task=Task("1", "could you tidy up, please?"))
    assert bench.supervisor.instruction == "", "nobody can judge by a goal in free words"
    bench.tick(3)
    assert (bench.plans, bench.sent) == ([1], [])
    bench.plan("open the drawer")
    assert bench.supervisor.instruction == "open the drawer"
    bench.tick(3)
    assert (bench.plans, bench.sent) == ([1], []), "nothing before the cell is known to be safe"
    bench.judge()
    bench.tick()
    assert [r.instruction for r in bench.sent] == ["open the drawer"]
    bench.loop.finish("canceled", bench.now)
    bench.feed(TaskEnded(bench.now, "canceled"))
    bench.loop.start(Task("2", "and now the lamp"), bench.now)
    bench.feed(TaskStarted(bench.now))
    bench.judge()
    bench.tick(2)
    assert (bench.plans, len(bench.sent)) == ([1, 2], 1), "another goal needs another plan"


def test_a_task_whose_words_a_judge_does_not_know_is_refused_with_its_reason():
    bench = running()
    said = bench.supervisor.refused(
        MONITOR, "1", "reach", "the monitor does not know it", bench.now
    )
    bench.note(said)
    assert (bench.result.success, bench.result.outcome) == (
        False,
        "refused: the monitor does not know it",
    )
    bench.tick(2)
    assert bench.motions[-2:] == [None, None]


def test_a_refusal_of_another_task_or_of_words_that_a_plan_has_replaced_changes_nothing():
    bench = running(rules())
    bench.plan("open the drawer")
    refuse = lambda *said: bench.note(bench.supervisor.refused(*said, "no", bench.now))  # noqa: E731
    refuse(SAFETY, "1", "reach")
    refuse(MONITOR, "0", "open the drawer")
    refuse(SYSTEM2, "1", "open the drawer")
    assert bench.loop.dropped == {"other_instruction": 2, "other_task": 1}
    assert bench.result is None
    refuse(SYSTEM2, "1", "reach")
    assert bench.result.outcome == "refused: no", "the planner is asked about the goal's own words"


def test_a_planner_that_is_silent_from_the_start_leaves_the_goals_own_words():
    bench = Bench(rules(safety=None, monitor=None))
    bench.tick(30)
    assert not bench.sent
    bench.tick(2)  # 32 periods: 1056 ms
    assert [t.reason for t in bench.transitions if "system2" in t.reason] == ["system2 is overdue"]
    assert [r.instruction for r in bench.sent] == ["reach"]


def test_a_first_plan_that_must_come_is_asked_for_until_it_does():
    bench = Bench(rules(safety=None, monitor=None, system2=Fallback.STOP_AND_RESEND))
    bench.tick(40)
    assert (bench.plans, bench.sent, bench.mode) == ([1, 2], [], HOLDING)
    bench.plan("open the drawer")
    bench.tick()
    assert [r.instruction for r in bench.sent] == ["open the drawer"]


def test_a_robot_that_a_human_released_before_its_first_plan_asks_again():
    bench = Bench(rules(safety=None, monitor=None, system2=Fallback.STOP_AND_CALL_HUMAN))
    bench.tick(40)
    assert (bench.mode, bench.plans) == (WAITING, [1])
    bench.feed(Release(bench.now, "Ada", "the planner is back"))
    bench.tick(2)
    assert (bench.plans, bench.sent) == ([1, 2], [])
    bench.plan("open the drawer")
    bench.tick()
    assert len(bench.sent) == 1


def test_a_replan_waits_for_the_new_plan_before_actions_are_asked_for():
    bench = running(rules(system2_ratio=9))
    bench.judge(safe=False)
    assert bench.plans == [1, 2]
    bench.judge()
    bench.tick(3)
    assert len(bench.sent) == 1
    bench.plan("go around")
    bench.tick()
    assert bench.sent[-1].instruction == "go around"


def test_the_way_to_the_safe_state_begins_with_a_stop_and_ends_holding():
    bench = running(rules(system2=None, safety=Fallback.RETURN_TO_SAFE_STATE))
    bench.judge(safe=False)
    assert bench.mode is RETURNING
    bench.tick(7)
    assert bench.motions[-7:] == [None, HOME, HOME, HOME, HOME, None, None]
    assert bench.mode is HOLDING
    bench.judge()
    bench.tick()
    assert bench.mode is RUNNING
    assert bench.position == 2  # the way home is no action of the policy


def test_a_body_without_a_safe_state_calls_a_human():
    bench = running(rules(system2=None, safety=Fallback.RETURN_TO_SAFE_STATE), way_home=None)
    bench.judge(safe=False)
    bench.tick(2)
    assert bench.mode is WAITING
    assert "no safe state" in bench.transitions[-1].reason


def test_a_body_that_never_arrives_at_its_safe_state_calls_a_human():
    bench = running(
        rules(system2=None, safety=None, monitor=Fallback.RETURN_TO_SAFE_STATE), way_home=10**9
    )
    bench.now += 5000 * MS
    bench.tick(2 + HOMING_LIMIT_NS // PERIOD)
    assert bench.mode is RETURNING
    bench.tick(2)
    assert bench.mode is WAITING
    assert "after 20 s" in bench.transitions[-1].reason


def test_a_failed_attempt_goes_home_resets_once_and_begins_again():
    bench = running(rules(safety=None, system2_ratio=9))
    bench.feed(Progress(bench.now, bench.now, TaskState.FAILED))
    assert bench.mode is RETRYING
    bench.tick(9)
    assert bench.motions[-9:] == [None, HOME, HOME, HOME, HOME, None, None, None, None]
    assert bench.resets == 1
    bench.feed(ResetDone(bench.now))
    bench.tick()
    assert bench.mode is RUNNING
    assert bench.sent[-1].id.round == 2
    assert bench.plans == [1, 2]


def test_a_reset_that_was_stopped_is_done_again():
    bench = running()
    bench.feed(Progress(bench.now, bench.now, TaskState.FAILED))
    bench.tick(7)
    assert bench.resets == 1
    bench.judge(safe=False)
    bench.feed(ResetDone(bench.now))
    bench.judge()
    assert bench.mode is RETRYING
    bench.tick(2)
    assert bench.resets == 2


def test_a_retry_that_never_arrives_at_the_safe_state_calls_a_human_too():
    bench = running(rules(safety=None, system2=None), way_home=10**9)
    bench.feed(Progress(bench.now, bench.now, TaskState.FAILED))
    bench.tick(2 + HOMING_LIMIT_NS // PERIOD)
    assert bench.mode is RETRYING
    bench.tick(2)
    assert bench.mode is WAITING
    assert "after 20 s" in bench.transitions[-1].reason
    assert bench.resets == 0


def test_a_way_home_that_interrupts_a_reset_ends_at_the_safe_state_and_the_reset_is_done_again():
    bench = running(rules(system2=None, safety=Fallback.RETURN_TO_SAFE_STATE))
    bench.feed(Progress(bench.now, bench.now, TaskState.FAILED))
    bench.tick(6)
    assert bench.resets == 1
    bench.way_home = 2  # from where the reset left the body
    bench.now += 5000 * MS
    bench.feed(Progress(bench.now, bench.now - 1, TaskState.ONGOING))  # it came before `ResetDone`
    assert bench.mode is RETURNING
    bench.feed(ResetDone(bench.now))
    bench.tick(4)
    assert bench.motions[-4:] == [None, HOME, HOME, None]
    assert bench.mode is HOLDING
    bench.judge()
    assert bench.mode is RETRYING
    bench.tick(2)
    assert bench.resets == 2


def test_a_task_that_the_monitor_calls_done_succeeds():
    bench = running()
    bench.feed(Progress(bench.now, bench.now, TaskState.DONE))
    assert bench.result.outcome == "succeeded"
    bench.tick(2)
    assert bench.motions[-2:] == [None, None]


def test_a_task_may_run_out_of_time_while_its_robot_waits_for_a_human_who_is_still_needed():
    task = Task("1", "reach", max_duration_ns=50 * PERIOD)
    bench = running(rules(system2=None, safety=Fallback.STOP_AND_CALL_HUMAN), task=task)
    bench.judge(safe=False)
    bench.tick(60)
    assert bench.result.outcome == "max_duration"
    assert bench.mode is WAITING
    bench.loop.start(Task("2", "reach"), bench.now)
    bench.feed(TaskStarted(bench.now))
    bench.judge()
    bench.tick(5)
    assert bench.motions[-5:] == [None] * 5
    bench.feed(Release(bench.now, "Ada", "nobody is there"))
    bench.tick()
    assert bench.mode is RUNNING


happenings = st.lists(
    st.sampled_from(
        ["tick"] * 6
        + ["safe"] * 4
        + ["answer"] * 4
        + ["unsafe", "failed", "reset done", "release", "outage", "plan", "late answer"]
    ),
    max_size=120,
)
any_rules = st.builds(
    rules,
    safety=st.sampled_from([f for f in Fallback if f is not Fallback.USE_LAST_PLAN]),
    system1=st.sampled_from([Fallback.STOP_AND_RESEND, Fallback.RETURN_TO_SAFE_STATE]),
    system2=st.sampled_from([None, Fallback.USE_LAST_PLAN, Fallback.STOP_AND_RESEND]),
)


@given(task_rules=any_rules, script=happenings, moments=st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_the_period_after_an_unsafe_verdict_holds_and_actions_need_a_safe_recent_one(
    task_rules, script, moments
):
    bench = Bench(task_rules)
    said, frame, stop_due = True, bench.now, False
    bench.now += 1
    for what in script:
        bench.now += moments.randrange(1, PERIOD)  # between two periods
        match what:
            case "tick":
                before = len(bench.motions)
                now = bench.now
                bench.tick()
                assert len(bench.motions) == before + 1
                motion = bench.motions[-1]
                if stop_due:
                    assert motion is None
                if motion not in (None, HOME):
                    assert said
                    assert now <= frame + task_rules.components[SAFETY].deadline_ns
                stop_due = False
            case "safe" | "unsafe":
                said = what == "safe"
                stop_due = stop_due or not said
                bench.judge(said)
                frame = bench.now
            case "answer" | "late answer" if bench.sent:
                bench.answer(back=min(len(bench.sent) - 1, what == "late answer"))
            case "failed":
                bench.feed(Progress(bench.now, bench.now, TaskState.FAILED))
            case "reset done" if bench.resets:
                bench.feed(ResetDone(bench.now))
            case "release":
                bench.feed(Release(bench.now, "Ada", "go on"))
            case "outage":
                bench.now += 700 * MS
            case "plan" if bench.plans:
                bench.note(bench.supervisor.planned(bench.plans[-1], "go on", bench.now))
    assert bench.position == bench.loop.executed


def test_late_actions_beyond_the_limit_call_a_human():
    bench = Bench(rules(safety=None, system2=None, monitor=None))
    bench.tick(25)
    assert bench.mode is WAITING
    assert [t.component for t in bench.transitions[1:]] == [SYSTEM1] * 3


def test_a_monitor_that_asks_the_policy_is_given_an_observation_when_it_is_overdue():
    bench = running(rules(system2=None, safety=None, asks_system1=True))
    bench.answer(horizon=500, back=0)
    bench.now += 4000 * MS - 2 * PERIOD
    bench.tick(3)
    assert [t.reason for t in bench.transitions][-1] == "monitor is overdue"
    assert bench.mode is HOLDING
    assert len(bench.sent) == 2, "else it has nothing to judge, and the arm holds for ever"
    bench.answer()
    bench.tick()
    assert bench.mode is RUNNING
    bench.now += 2000 * MS
    bench.tick()
    assert bench.supervisor.state.slo_violations == {MONITOR: 2}, "System 1's answer is not its own"


def test_with_a_planner_that_asks_the_policy_a_task_begins_in_its_own_words():
    for fallback in (Fallback.USE_LAST_PLAN, Fallback.STOP_AND_RESEND):
        bench = Bench(rules(safety=None, monitor=None, system2=fallback, asks_system1=True))
        bench.tick()
        assert (bench.plans, [r.instruction for r in bench.sent]) == ([1], ["reach"])
        bench.answer(horizon=500)
        bench.tick(32)  # 1056 ms: the plan is overdue
        if fallback is Fallback.STOP_AND_RESEND:
            assert (bench.mode, bench.plans, len(bench.sent)) == (HOLDING, [1, 2], 2)
            bench.answer()
            bench.tick()
        assert bench.mode is RUNNING
        bench.plan("open the drawer")
        assert bench.loop.instruction == "open the drawer"


def test_a_replan_of_the_policy_itself_needs_an_observation():
    bench = running(rules(monitor=None, asks_system1=True))
    bench.judge(safe=False)
    bench.judge()
    bench.tick()
    assert len(bench.sent) == 2
    bench.answer()
    bench.tick()
    assert bench.mode is RUNNING


def test_who_asks_the_policy_is_not_missed_while_an_unsafe_cell_keeps_it_from_being_asked():
    resend = Fallback.STOP_AND_RESEND
    asking = rules(system1=None, safety=resend, system2=resend, asks_system1=True)
    bench = running(replace(asking, max_consecutive_safety_replan=6))
    bench.tick(8)  # the buffer is used up, the next request is out, and with it a question
    for safe in 6 * [False] + [True]:  # 6.3 s: the plan has 1 s, and the monitor 4 s
        bench.now += 900 * MS
        bench.judge(safe=safe)
    assert {t.component for t in bench.transitions} == {SAFETY, None}
    bench.tick()
    assert (bench.mode, bench.plans) == (RUNNING, [1, 2, 3]), "the second is out of time"
    bench.answer(horizon=500)
    bench.now += 950 * MS
    bench.judge()
    bench.now += 50 * MS
    bench.tick()
    assert bench.transitions[-1].reason == "system2 is overdue", "now it can see"
