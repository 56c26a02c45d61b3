"""What holds of the robot's state machine for any rules and any sequence of events."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from task_rules import MONITOR, MS, SAFETY, SYSTEM1, SYSTEM2, rules

from kairos_ros.core.pipeline import ESCALATIONS, FALLBACKS, Component, Fallback, TaskState
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
    WAITING,
    Effect,
    Trigger,
)

RETURN = Fallback.RETURN_TO_SAFE_STATE
DEADLINE = 1000 * MS
"""Of a safety verdict, with the rules of these tests."""

fallbacks = {c: st.sampled_from(FALLBACKS[c]) for c in Component}
some_rules = st.builds(
    rules,
    system1=fallbacks[SYSTEM1],
    system2=st.none() | fallbacks[SYSTEM2],
    safety=st.none() | fallbacks[SAFETY],
    monitor=st.none() | fallbacks[MONITOR],
    asks_system1=st.booleans(),
    max_task_retries=st.integers(0, 3),
    on_max_task_retries=st.sampled_from(ESCALATIONS),
    max_consecutive_safety_replan=st.integers(0, 4),
    max_consecutive_slo_violation=st.integers(0, 4),
    on_max_violation=st.sampled_from(ESCALATIONS),
)
pauses = st.sampled_from([0, 1, 33, 200, 500, 1000, 1001, 2500]).map(lambda ms: ms * MS)
ages = st.sampled_from([-1, 0, 0, 1, 30, 400, 1000, 1001, 5000]).map(lambda ms: ms * MS)


class AnyRobot(RuleBasedStateMachine):
    """Beside the machine runs a model of what was said about safety, and of the budgets."""

    @initialize(task_rules=some_rules)
    def begin(self, task_rules):
        self.rules = task_rules
        self.state = State()
        self.now = 10_000 * MS
        self.said = {}  # service -> (frame, safe), of its newest usable verdict
        self.unsafe = 0
        self.failures = 0  # retries granted since the task, or a human, gave a new budget
        self.known = Counter()

    def do(self, event):
        before = self.state
        done = step(self.rules, before, event)
        self.state = done.state
        mode = before.mode
        for transition in done.transitions:
            assert transition.before is mode
            assert transition.reason
            if transition.before is WAITING is not transition.after:
                assert isinstance(event, Release)
            self.failures += transition.trigger is Trigger.FAILED
            mode = transition.after
        assert mode is self.state.mode  # nothing changes the mode without a record
        self.effects = [e for transition in done.transitions for e in transition.effects]
        return done

    def spoken(self):
        """Verdicts that are not overdue."""
        return {
            name: safe for name, (frame, safe) in self.said.items() if self.now <= frame + DEADLINE
        }

    @rule(pause=pauses)
    def time_passes(self, pause):
        self.now += pause
        self.do(Tick(self.now))

    @rule(age=ages, safe=st.sampled_from([True, True, False]), source=st.sampled_from("aab"))
    def a_service_judges(self, age, safe, source):
        frame = self.now - age
        task, waiting = self.state.task, self.state.mode is WAITING
        done = self.do(CellVerdict(self.now, frame, safe, source))
        usable = age >= 0 and age <= DEADLINE and SAFETY in self.rules.components
        if source in self.said:
            newest, was_safe = self.said[source]
            warns = was_safe and not safe  # another picture of that look is newer
            usable = usable and (frame > newest or (frame == newest and warns))
        assert usable == (not done.dropped)
        if not usable:
            return
        self.said[source] = (frame, safe)
        if safe:
            if all(self.spoken().values()):
                self.unsafe = 0
            return
        assert self.effects[0] is Effect.STOP
        assert self.state.mode is not RUNNING
        waiting = waiting or (WAITING in [t.after for t in done.transitions[:-1]])
        if task and not waiting:
            self.unsafe += 1
            if self.unsafe > self.rules.max_consecutive_safety_replan:
                assert self.state.mode in (RETURNING, WAITING)

    @rule(age=ages, said=st.sampled_from(TaskState))
    def the_monitor_judges(self, age, said):
        self.do(Progress(self.now, self.now - age, said))
        if Effect.SUCCEED in self.effects:
            assert said is TaskState.DONE
            assert not self.state.task

    @rule(component=st.sampled_from([SYSTEM1, SYSTEM2]))
    def the_robot_asks(self, component):
        self.do(ComponentAsked(self.now, component))

    @rule(component=st.sampled_from([SYSTEM1, SYSTEM2]))
    def an_answer_comes(self, component):
        self.do(ComponentAnswered(self.now, component))

    @rule()
    def the_safe_state_is_reached(self):
        self.do(SafeStateReached(self.now))

    @rule()
    def the_safe_state_is_missed(self):
        self.do(SafeStateMissed(self.now, "stuck"))

    @rule(worked=st.sampled_from([True, True, False]))
    def the_reset_ends(self, worked):
        self.do(ResetDone(self.now) if worked else ResetFailed(self.now, "no scene"))

    @precondition(lambda self: not self.state.task)
    @rule()
    def a_task_begins(self):
        self.do(TaskStarted(self.now))
        self.unsafe = self.failures = 0

    @precondition(lambda self: self.state.task)
    @rule()
    def the_task_ends(self):
        self.do(TaskEnded(self.now, "canceled"))
        assert self.state.mode in (HOLDING, WAITING)

    @rule()
    def a_human_releases(self):
        waited = self.state.mode is WAITING
        self.do(Release(self.now, "Ada", "looked at it"))
        if waited:
            self.unsafe = self.failures = 0
            assert self.state.mode in (HOLDING, RUNNING)
            assert not self.state.slo_violations

    @invariant()
    def it_runs_only_while_the_newest_word_on_safety_is_safe_and_recent(self):
        if self.state.mode is RUNNING and SAFETY in self.rules.components:
            spoken = self.spoken()
            assert spoken
            assert all(spoken.values())

    @invariant()
    def it_runs_only_with_a_task(self):
        assert self.state.task or self.state.mode in (HOLDING, WAITING)

    @invariant()
    def it_moves_in_an_unsafe_cell_only_where_the_file_lets_safety_do_so(self):
        if self.state.mode in (RETURNING, RETRYING) and SAFETY in self.rules.components:
            safety = self.rules.components[SAFETY].fallback
            allowed = RETURN in (safety, self.rules.on_max_violation)
            assert allowed or all(self.spoken().values())

    @invariant()
    def actions_are_asked_for_only_in_a_cell_known_to_be_safe(self):
        if wants_actions(self.rules, self.state) and SAFETY in self.rules.components:
            assert self.spoken()
            assert all(self.spoken().values())

    @invariant()
    def retries_and_counters_stay_within_their_limits(self):
        assert self.failures == self.state.retries <= self.rules.max_task_retries
        assert self.state.unsafe == self.unsafe
        assert not set(self.state.slo_violations) - set(self.rules.components)

    @precondition(lambda self: self.state.mode is RUNNING)
    @rule(times=st.integers(2, 5))
    def attempts_fail_in_a_row(self, times):
        for _ in range(times):
            self.now += MS
            self.do(Progress(self.now, self.now, TaskState.FAILED))
            self.do(ResetDone(self.now))

    @rule()
    def everybody_answers_and_it_runs_again(self):
        if not self.state.task:
            self.a_task_begins()
        for _ in range(3):
            self.now += MS
            if self.state.mode is WAITING:
                self.a_human_releases()
            for source in "ab":
                self.a_service_judges(0, True, source)
            for event in (
                SafeStateReached(self.now),
                ResetDone(self.now),
                Progress(self.now, self.now, TaskState.ONGOING),
                ComponentAnswered(self.now, SYSTEM2),
                ComponentAnswered(self.now, SYSTEM1),
            ):
                self.do(event)
        assert self.state.mode is RUNNING


pytestmark = pytest.mark.slow
AnyRobot.TestCase.settings = settings(max_examples=250, stateful_step_count=40)
TestAnyRobot = AnyRobot.TestCase
