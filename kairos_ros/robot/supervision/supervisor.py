"""The generate-execute loop under the rules of a task: it moves only as the state machine allows.

Pure like the loop: events in, effects out. What a judge says stops the buffer at once, so that the
next control period holds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.exchange import Answer
from kairos_ros.core.execution.effects import Act, Send
from kairos_ros.core.execution.effects import Effect as LoopEffect
from kairos_ros.core.execution.loop import Approve, Loop
from kairos_ros.core.execution.task import Task
from kairos_ros.core.pipeline import Component, TaskRules
from kairos_ros.robot.supervision.state import State, wants_actions
from kairos_ros.robot.supervision.state_events import (
    ComponentAnswered,
    ComponentAsked,
    Event,
    SafeStateMissed,
    SafeStateReached,
    TaskStarted,
    Tick,
)
from kairos_ros.robot.supervision.state_machine import Transition, step
from kairos_ros.robot.supervision.state_table import Effect, Mode

HOMING_LIMIT_NS = 20_000_000_000
"""An arm that has not reached its safe state by then needs a human."""
HOMING = (Mode.RETURNING, Mode.RETRYING)
NO_SAFE_STATE = "the body has no safe state to return to"

Homeward = Callable[[], np.ndarray | None]
"""The next action towards the safe state, float32 [D]; None: the body is there."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The state machine made a transition. Its `RESEND` to a judge, `REPLAN` without a planner and
    `CALL_HUMAN` are for whoever is outside; everything else has been done."""

    transition: Transition


@dataclass(frozen=True, slots=True)
class AskPlan:
    """Ask System 2, with an observation taken now."""

    task: Task
    number: int
    """Comes back with the plan; counts up over the session."""
    instruction: str
    """What is being followed now."""


@dataclass(frozen=True, slots=True)
class ResetBody:
    """Reset body and scene for the running task, then tell by `ResetDone` or `ResetFailed`. The
    body is given nothing else before that has ended."""


SupervisedEffect = LoopEffect | Moved | AskPlan | ResetBody


class Supervisor:
    """Drives a loop by the rules of its tasks. Call it from the loop's thread.

    Whoever carries its effects out feeds it `TaskStarted` when a task has begun in the loop, and
    `TaskEnded` when one has ended there.
    """

    def __init__(self, loop: Loop, rules: TaskRules) -> None:
        self.state = State()
        self.rules = rules
        self._loop = loop
        self._plans_asked = 0
        self._rounds = 0  # of System 1, since the last plan was asked for
        self._homing_since_ns: int | None = None
        self._pause = False  # before a motion home begins, or goes on, the arm holds for one period
        self._resetting = False

    def feed(self, event: Event) -> list[SupervisedEffect]:
        """Something happened. What is of no use is dropped and counted in the loop."""
        if isinstance(event, TaskStarted):
            self._rounds = self.rules.system2_ratio  # a task begins with a plan
        done = step(self.rules, self.state, event)
        self.state = done.state
        if done.dropped:
            self._loop.dropped[done.dropped] += 1
        effects: list[SupervisedEffect] = []
        for transition in done.transitions:
            effects.append(Moved(transition))
            effects += self._obey(transition)
        return effects

    def tick(
        self, now_ns: int, approve: Approve, homeward: Homeward | None
    ) -> list[SupervisedEffect]:
        """One control period, as `Loop.tick`. `homeward` is None for a body without safe state."""
        effects = self.feed(Tick(now_ns))
        moves = self.state.mode is Mode.RUNNING
        asks = wants_actions(self.rules, self.state)
        system2 = self.rules.components.get(Component.SYSTEM2)
        if not asks and system2 is not None and system2.asks_system1:
            self._rounds = self.rules.system2_ratio  # it has seen nothing since: asked anew
        waits_for_plan = self.state.unplanned and self.state.mode is Mode.HOLDING
        if waits_for_plan and Component.SYSTEM2 not in self.state.due_ns:
            effects += self._ask_plan(now_ns)
        for effect in self._loop.tick(now_ns, approve, ask=asks, move=moves):
            if isinstance(effect, Send):
                effects += self._ask_plan_in_turn(effect, now_ns)
                effects += self.feed(ComponentAsked(now_ns, Component.SYSTEM1))
            effects.append(effect)
        if self.state.mode in HOMING and self._loop.task is not None:
            effects += self._home(effects.pop(), now_ns, approve, homeward)
        else:
            self._homing_since_ns, self._resetting = None, False
        self._pause = False
        return effects

    def receive(self, answer: Answer, now_ns: int) -> list[SupervisedEffect]:
        """An answer of System 1 arrived. A deadline that it missed counts first."""
        effects = self.feed(Tick(now_ns))
        awaited = self._loop.awaiting
        effects += self._loop.receive(answer, now_ns)
        if awaited and not self._loop.awaiting and self._loop.task is not None:
            effects += self.feed(ComponentAnswered(now_ns, Component.SYSTEM1))
        return effects

    def planned(self, number: int, instruction: str, now_ns: int) -> list[SupervisedEffect]:
        """System 2's answer to `AskPlan`. Only the newest question's counts."""
        if number != self._plans_asked or self._loop.task is None:
            self._loop.dropped["old_plan"] += 1
            return []
        if not instruction.strip():
            self._loop.dropped["empty_plan"] += 1
            return []
        effects = self.feed(Tick(now_ns))
        if number == self._plans_asked:  # else that deadline has just made it ask anew
            self._loop.instruct(instruction)
            effects += self.feed(ComponentAnswered(now_ns, Component.SYSTEM2))
        return effects

    def refused(
        self, component: Component, task: str, instruction: str, reason: str, now_ns: int
    ) -> list[SupervisedEffect]:
        """A component cannot judge, or plan, the task in these words: it ends. What a judge says of
        words that have been replaced since is of no use."""
        running = self._loop.task
        if running is None or running.id != task or component not in self.rules.components:
            self._loop.dropped["other_task"] += 1
            return []
        of_planner = component is Component.SYSTEM2
        if instruction != (running.instruction if of_planner else self.instruction):
            self._loop.dropped["other_instruction"] += 1
            return []
        return [self._loop.finish(f"refused: {reason}", now_ns)]

    @property
    def instruction(self) -> str:
        """What a judge is to judge by: what is being followed; empty before the first plan."""
        return "" if self.state.unplanned else self._loop.instruction

    def _obey(self, transition: Transition) -> list[SupervisedEffect]:
        effects, now_ns = transition.effects, transition.now_ns
        component = transition.component
        of_system1 = component is not None and self.rules.waits_for(component) is Component.SYSTEM1
        if Effect.STOP in effects:
            self._pause = True
            self._loop.stop(keep_round=of_system1 and Effect.RESEND in effects)
        if Effect.RESEND in effects and of_system1:
            self._loop.ask_again(now_ns)
        if Effect.RESET in effects or (Effect.RETURN in effects and self._resetting):
            self._homing_since_ns, self._resetting = None, False  # from where a reset left the body
        if Effect.RESET in effects:
            self._rounds = self.rules.system2_ratio  # another attempt begins with another plan
        if Effect.SUCCEED in effects:
            return [self._loop.finish("succeeded", now_ns)]
        if Effect.FAIL in effects:
            return [self._loop.finish(f"failed: {transition.reason}", now_ns)]
        resend_plan = Effect.RESEND in effects and component is Component.SYSTEM2
        if resend_plan or Effect.REPLAN in effects:
            return self._ask_plan(now_ns)
        return []

    def _ask_plan_in_turn(self, send: Send, now_ns: int) -> list[SupervisedEffect]:
        """Once every so many rounds."""
        if send.request.id.attempt > 0:
            return []
        asked = self._ask_plan(now_ns) if self._rounds >= self.rules.system2_ratio else []
        self._rounds += 1
        return asked

    def _ask_plan(self, now_ns: int) -> list[SupervisedEffect]:
        task = self._loop.task
        if Component.SYSTEM2 not in self.rules.components or task is None:
            return []
        self._plans_asked += 1
        self._rounds = 0
        asked = AskPlan(task, self._plans_asked, self._loop.instruction)
        return [*self.feed(ComponentAsked(now_ns, Component.SYSTEM2)), asked]

    def _home(
        self, hold: SupervisedEffect, now_ns: int, approve: Approve, homeward: Homeward | None
    ) -> list[SupervisedEffect]:
        """This period's motion on the way to the safe state, instead of `hold`."""
        if self._resetting or self._pause:
            return [hold]
        if self._homing_since_ns is None:
            self._homing_since_ns = now_ns
        if homeward is None:
            if self.state.mode is Mode.RETURNING:
                return [*self.feed(SafeStateMissed(now_ns, NO_SAFE_STATE)), hold]
            return [self._reset(), hold]
        action = homeward()
        if action is None:
            if self.state.mode is Mode.RETURNING:
                return [*self.feed(SafeStateReached(now_ns)), hold]
            return [self._reset(), hold]
        if now_ns - self._homing_since_ns > HOMING_LIMIT_NS:
            reason = f"not at the safe state after {HOMING_LIMIT_NS // 1_000_000_000} s"
            return [*self.feed(SafeStateMissed(now_ns, reason)), hold]
        approved = approve(action)
        return [hold if approved is None else Act(approved)]

    def _reset(self) -> ResetBody:
        self._resetting = True
        return ResetBody()
