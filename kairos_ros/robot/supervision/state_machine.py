"""What a robot may do, given what its judges say or fail to say: events in, transitions out (Rosa
§3.3). Pure: no clock, no I/O.

`step` turns an event into triggers, by the task's rules, its counters and its deadlines, and looks
them up in `state_table.TABLE`. Two promises follow (test/robot/supervision/test_state_machine.py):

- `RUNNING` means that the newest word on safety is "safe" and not overdue;
- `WAITING` is left by a release with a name and a reason, and by nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kairos_ros.core.pipeline import PERIODIC, Component, Fallback, TaskRules, TaskState
from kairos_ros.robot.supervision.state import (
    MONITOR,
    SAFETY,
    SYSTEM1,
    SYSTEM2,
    State,
    fresh,
    is_safe,
    wants_actions,
)
from kairos_ros.robot.supervision.state_events import (
    CellVerdict,
    ComponentAnswered,
    ComponentAsked,
    Event,
    Progress,
    Release,
    ResetDone,
    ResetFailed,
    SafeStateMissed,
    SafeStateReached,
    TaskEnded,
    TaskStarted,
)
from kairos_ros.robot.supervision.state_table import (
    HOLDING,
    RETRYING,
    ROWS,
    WAITING,
    WORKING,
    Effect,
    Mode,
    Trigger,
)


@dataclass(frozen=True, slots=True)
class Transition:
    """One change, or one repeated stop, for the record."""

    now_ns: int
    before: Mode
    after: Mode
    trigger: Trigger
    effects: tuple[Effect, ...]
    component: Component | None
    reason: str
    """In words, never empty."""
    caused_ns: int = 0
    """When the event that led to it happened: before `now_ns` if it had to wait for its turn."""


@dataclass(frozen=True, slots=True)
class Step:
    state: State
    transitions: tuple[Transition, ...] = ()
    dropped: str = ""
    """Why the event was not used; empty if it was."""


def step(rules: TaskRules, state: State, event: Event) -> Step:
    """What `event` makes of `state`. Deadlines that have passed by then count first."""
    turn = _Turn(rules, replace(state, now_ns=max(state.now_ns, event.now_ns)), event.now_ns)
    if not isinstance(event, ResetDone):  # nobody could listen while the body was being reset
        turn.watch_deadlines()
    dropped = turn.handle(event)
    turn.settle()
    return Step(turn.state, tuple(turn.transitions), dropped)


class _Turn:
    """One step in the making."""

    def __init__(self, rules: TaskRules, state: State, caused_ns: int) -> None:
        self.rules = rules
        self.state = state
        self.caused_ns = caused_ns
        self.transitions: list[Transition] = []

    def handle(self, event: Event) -> str:
        """Returns why the event is not used; empty if it is."""
        match event:
            case TaskStarted():
                self._begin_task()
            case TaskEnded(_, outcome):
                self._end_task(outcome)
            case ComponentAsked(_, component):
                self._asked(component)
            case ComponentAnswered(_, component):
                self._answered(component)
            case CellVerdict():
                return self._judged(event)
            case Progress():
                return self._progressed(event)
            case SafeStateReached():
                at = Trigger.HUMAN_NEXT if self.state.human_next else Trigger.AT_SAFE_STATE
                self._fire(at, None, "the body is at its safe state")
            case SafeStateMissed(_, reason):
                self._fire(Trigger.NO_WAY_BACK, None, reason)
            case ResetDone():
                if self.state.mode is RETRYING:
                    self._set(reset_owed=False, judged_ns=self.state.now_ns)
                    self._fire(Trigger.RESET_DONE, None, f"retry {self.state.retries} begins")
                    self._expect_anew()
            case ResetFailed(_, reason):
                self._fire(Trigger.RESET_FAILED, None, reason)
            case Release(_, name, reason):
                return self._release(name, reason)
        return ""

    def watch_deadlines(self) -> None:
        """Every deadline that has passed is one violation."""
        now_ns = self.state.now_ns
        self._set(verdicts=fresh(self.rules, self.state, now_ns))
        self._excuse_who_sees_nothing()
        for component in Component:
            if self._watches(component) and now_ns > self.state.due_ns.get(component, now_ns):
                self._late(component)

    def _excuse_who_sees_nothing(self) -> None:
        """While System 1 may not be asked, whoever looks at what it is asked with cannot answer: a
        monitor has a whole deadline from then on, and a plan that was under way is given up."""
        if wants_actions(self.rules, self.state):
            return
        for component, rules in self.rules.components.items():
            if rules.asks_system1 and component in self.state.due_ns:
                due_ns = self.state.now_ns + rules.deadline_ns
                self._due(component, due_ns if component in PERIODIC else None)

    def settle(self) -> None:
        """A robot that nothing stops any more goes on."""
        state = self.state
        if state.mode is HOLDING and state.task and not state.stopped_by and self._safe:
            if state.reset_owed:
                self._fire(Trigger.RESET_STILL_DUE, None, "the cell is safe again")
            else:
                self._fire(Trigger.CLEAR, None, "the cell is safe and every answer is here")

    def _begin_task(self) -> None:
        self._set(
            task=True,
            judged_ns=self.state.now_ns,
            slo_violations={},
            unsafe=0,
            retries=0,
            unplanned=self._plans_first,
        )
        self._expect_anew()

    def _end_task(self, outcome: str) -> None:
        called = self.state.human_next and self.state.mode is not WAITING
        self._set(
            task=False,
            unplanned=False,
            reset_owed=False,
            human_next=False,
            stopped_by=frozenset(),
        )
        if called:
            reason = f"task ended ({outcome}) on the way to where a human is called"
            self._fire(Trigger.STOP_AND_CALL_HUMAN, None, reason)
        else:
            self._fire(Trigger.TASK_ENDED, None, outcome)

    def _expect_anew(self) -> None:
        """An attempt begins: nothing is late, and only the first plan is waited for."""
        stopped_by = frozenset({SYSTEM2} if self.state.unplanned else ())
        self._set(due_ns={}, late=frozenset(), stopped_by=stopped_by)
        self._expect_judges()

    def _expect_judges(self) -> None:
        """Judges get a whole deadline from now; a safety verdict that is there counts."""
        self._set(verdicts=fresh(self.rules, self.state, self.state.now_ns))
        state = self.state
        due_ns = dict(state.due_ns)
        for component in PERIODIC & self.rules.components.keys():
            due_ns[component] = state.now_ns + self.rules.components[component].deadline_ns
        if state.verdicts and SAFETY in due_ns:
            due_ns[SAFETY] = self._verdicts_end_ns()
        self._set(due_ns=due_ns)

    def _know_words(self) -> None:
        """A plan is there, or none is waited for any longer: from now on judges are asked. The arm
        waits for what they say now. Earlier verdicts are nearly overdue, but not forgotten: none of
        an older picture may replace them."""
        if self.state.unplanned:
            self._set(unplanned=False, judged_ns=self.state.now_ns)
            self._expect_judges()
            if SAFETY in self.rules.components:
                deadline_ns = self.rules.components[SAFETY].deadline_ns
                self._set(stopped_by=self.state.stopped_by | {SAFETY})
                self._due(SAFETY, self.state.now_ns + deadline_ns)

    def _asked(self, component: Component) -> None:
        if component in self.rules.components and component not in self.state.due_ns:
            deadline_ns = self.rules.components[component].deadline_ns
            self._set(late=self.state.late - {component})
            self._due(component, self.state.now_ns + deadline_ns)

    def _answered(self, component: Component, due_ns: int | None = None) -> None:
        """An answer that is in time ends a series of violations; any answer unblocks."""
        state = self.state
        if component not in state.late:
            self._set(slo_violations=_without(state.slo_violations, component))
        self._set(late=state.late - {component}, stopped_by=state.stopped_by - {component})
        self._due(component, due_ns)
        if component is SYSTEM2:
            self._know_words()

    def _judged(self, verdict: CellVerdict) -> str:
        state, rules = self.state, self.rules.components.get(SAFETY)
        if rules is None:
            return "no_safety_component"
        newest_ns, was_safe = state.verdicts.get(verdict.source, (-1, True))
        if was_safe and not verdict.safe:
            newest_ns -= 1  # beside the oldest picture, a newer one may show what is new
        if why := self._unusable(verdict.frame_ns, rules.deadline_ns, newest_ns):
            return why
        said = (verdict.frame_ns, verdict.safe)
        self._set(verdicts={**state.verdicts, verdict.source: said})
        self._answered(SAFETY, self._verdicts_end_ns())
        if verdict.safe:
            if self._safe:
                self._set(unsafe=0)
            return ""
        reason = f"unsafe: {verdict.reason}" if verdict.reason else "unsafe"
        if not state.task or state.mode is WAITING:
            self._fire(Trigger.UNSAFE, SAFETY, reason)
            return ""
        self._set(unsafe=state.unsafe + 1)
        limit = self.rules.max_consecutive_safety_replan
        if self.state.unsafe > limit:
            reason += f"; {self.state.unsafe} in a row, {limit} are allowed"
        self._violated(SAFETY, self.state.unsafe > limit, reason)
        return ""

    def _progressed(self, progress: Progress) -> str:
        state, rules = self.state, self.rules.components.get(MONITOR)
        if rules is None:
            return "no_monitor_component"
        if not state.task:
            return "no_task"
        if why := self._unusable(progress.frame_ns, rules.deadline_ns, state.judged_ns):
            return why
        self._set(judged_ns=progress.frame_ns)
        self._answered(MONITOR, progress.frame_ns + rules.deadline_ns)
        if state.mode not in WORKING or not self._safe:
            return ""  # moves nothing now; the next one will tell again
        if progress.state is TaskState.DONE:
            self._fire(Trigger.DONE, MONITOR, progress.reason or "the monitor says done")
        elif progress.state is TaskState.FAILED:
            self._failed(progress.reason or "the monitor says failed")
        return ""

    def _failed(self, reason: str) -> None:
        limit = self.rules.max_task_retries
        if self.state.retries < limit:
            self._set(retries=self.state.retries + 1, reset_owed=True)
            self._fire(Trigger.FAILED, MONITOR, reason)
        else:
            reason += f"; all {limit} retries are used up"
            self._escalate(self.rules.on_max_task_retries, MONITOR, reason)

    def _release(self, name: str, reason: str) -> str:
        if self.state.mode is not WAITING:
            return "nobody_waits"
        self._set(
            judged_ns=self.state.now_ns,
            slo_violations={},
            unsafe=0,
            retries=0,
            reset_owed=False,
            human_next=False,
        )
        self._fire(Trigger.RELEASED, None, f"{name}: {reason}")
        self._expect_anew()
        return ""

    def _unusable(self, frame_ns: int, deadline_ns: int, newest_ns: int) -> str:
        """Why a judgement of this frame says nothing; empty if it does."""
        if frame_ns > self.state.now_ns:
            return "future_frame"
        old = frame_ns <= newest_ns or frame_ns + deadline_ns < self.state.now_ns
        return "old_frame" if old else ""

    def _watches(self, component: Component) -> bool:
        """Whether a missing answer of this component is a violation now."""
        state = self.state
        if component not in self.rules.components or not state.task or state.mode is WAITING:
            return False
        if component in PERIODIC and state.unplanned:
            return False
        return component is SAFETY or state.mode in WORKING

    def _late(self, component: Component) -> None:
        rules, state = self.rules.components[component], self.state
        count = state.slo_violations.get(component, 0) + 1
        limit = self.rules.max_consecutive_slo_violation
        self._set(
            slo_violations={**state.slo_violations, component: count},
            late=state.late | {component},
        )
        self._due(component, state.now_ns + rules.again_ns)
        reason = f"{component} is overdue"
        if count > limit:
            reason += f"; {count} times in a row, {limit} are allowed"
        self._violated(component, count > limit, reason)

    def _violated(self, component: Component, too_often: bool, reason: str) -> None:
        if too_often:
            self._escalate(self.rules.on_max_violation, component, reason)
        else:
            self._react(self.rules.components[component].fallback, component, reason)

    def _escalate(self, fallback: Fallback, component: Component, reason: str) -> None:
        self._set(human_next=True)
        self._react(fallback, component, reason)

    def _react(self, fallback: Fallback, component: Component, reason: str) -> None:
        state = self.state
        if fallback is Fallback.USE_LAST_PLAN:
            self._set(stopped_by=state.stopped_by - {component})
            self._due(component, None)  # that plan is not waited for any longer
            self._know_words()
        elif component is not SAFETY:
            self._set(stopped_by=state.stopped_by | {self.rules.waits_for(component)})
            if fallback is Fallback.RETURN_TO_SAFE_STATE and not self._safe:
                fallback = Fallback.STOP_AND_RESEND  # only safety itself may move an unsafe cell
        if state.human_next and fallback is not Fallback.RETURN_TO_SAFE_STATE:
            fallback = Fallback.STOP_AND_CALL_HUMAN  # stopped on the way to where a human is called
        self._fire(Trigger(fallback.value), component, reason)

    def _fire(self, trigger: Trigger, component: Component | None, reason: str) -> None:
        row = ROWS.get((trigger, self.state.mode))
        if row is None:
            return
        before = self.state.mode
        self._set(mode=row.target or before)
        asked_again = Effect.RESEND in row.effects and self._waits_for_system1(component)
        if Effect.STOP in row.effects and not asked_again:
            self._due(SYSTEM1, None)  # that round is abandoned
        if Effect.REPLAN in row.effects and SYSTEM2 in self.rules.components:
            self._set(stopped_by=self.state.stopped_by | {self.rules.waits_for(SYSTEM2)})
            self._due(SYSTEM2, None)  # it is asked anew
        if Effect.SUCCEED in row.effects or Effect.FAIL in row.effects:
            self._set(task=False, unplanned=False, reset_owed=False, stopped_by=frozenset())
        self.transitions.append(
            Transition(
                self.state.now_ns,
                before,
                self.state.mode,
                trigger,
                row.effects,
                component,
                reason,
                self.caused_ns,
            )
        )

    @property
    def _plans_first(self) -> bool:
        """Whether a task begins with a plan: not where the planner knows of no observation yet."""
        system2 = self.rules.components.get(SYSTEM2)
        return system2 is not None and not system2.asks_system1

    def _waits_for_system1(self, component: Component | None) -> bool:
        return component is not None and self.rules.waits_for(component) is SYSTEM1

    @property
    def _safe(self) -> bool:
        return is_safe(self.rules, self.state, self.state.now_ns)

    def _verdicts_end_ns(self) -> int:
        """When the newest verdict is overdue."""
        newest_ns = max(frame_ns for frame_ns, _ in self.state.verdicts.values())
        return newest_ns + self.rules.components[SAFETY].deadline_ns

    def _due(self, component: Component, due_ns: int | None) -> None:
        dues = _without(self.state.due_ns, component)
        self._set(due_ns=dues if due_ns is None else {**dues, component: due_ns})

    def _set(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)


def _without(counts: Mapping[Component, int], component: Component) -> dict[Component, int]:
    return {name: value for name, value in counts.items() if name is not component}
