"""The control thread: one robot's body, guard and loop, at the control rate. No ROS.

Everything that touches the body or the loop happens in the thread that calls `Controller.run`.
Other threads `post` events to it and read `Controller.report`, which is replaced, never changed.
"""

import queue
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic_ns
from typing import cast

import numpy as np

from kairos_ros.core.errors import KairosError
from kairos_ros.core.execution.effects import Act, Finished, Hold, Observe, Send
from kairos_ros.core.execution.loop import Loop
from kairos_ros.core.execution.task import LIMITS, Task, TaskResult
from kairos_ros.core.pipeline import Component
from kairos_ros.core.robot_state import RobotState
from kairos_ros.robot.adapter import Homing, RobotAdapter, TaskGoal
from kairos_ros.robot.body_error import BodyCondition, BodyError
from kairos_ros.robot.control_events import (
    Arrived,
    Cancel,
    Event,
    LimitsChanged,
    Malformed,
    Planned,
    Refused,
    ServerFound,
    ServerHeard,
    Start,
    StopControl,
)
from kairos_ros.robot.control_report import ControlListener, Report, SupervisionListener
from kairos_ros.robot.guard import ActionGuard
from kairos_ros.robot.motion_watch import MotionWatch
from kairos_ros.robot.observation_history import ObservationHistory
from kairos_ros.robot.supervision.state import is_warned
from kairos_ros.robot.supervision.state_events import (
    CellVerdict,
    Progress,
    Release,
    ResetDone,
    ResetFailed,
    TaskEnded,
    TaskStarted,
)
from kairos_ros.robot.supervision.state_table import Mode
from kairos_ros.robot.supervision.supervisor import (
    AskPlan,
    Moved,
    ResetBody,
    SupervisedEffect,
    Supervisor,
)

STOPPED = "failed: the robot node was stopped"


class Controller:
    """Runs tasks one at a time. Deadlines are absolute: a missed period is counted, not made up.

    With a supervisor of its loop, and judges for it, it moves only as the task's rules allow.
    """

    def __init__(
        self,
        adapter: RobotAdapter,
        loop: Loop,
        guard: ActionGuard,
        listener: ControlListener,
        supervised: tuple[Supervisor, SupervisionListener] | None = None,
        motion: MotionWatch | None = None,
    ) -> None:
        self.report = Report()
        self._adapter = adapter
        self._loop = loop
        self._guard = guard
        self._listener = listener
        self._supervisor: Supervisor | None
        self._judges: SupervisionListener | None
        self._supervisor, self._judges = supervised or (None, None)
        # a body inside a LoggedBody is asked, too; isinstance would not find what that hands on
        homing = cast(Homing, adapter) if getattr(adapter, "has_safe_state", False) else None
        self._homeward = homing.toward_safe_state if homing else None
        self._motion = motion
        self._did: np.ndarray | None = None  # in the period that ends; None: it held
        self._goal = TaskGoal("")  # of the running task
        self._history = ObservationHistory(adapter)
        self._postponed: Start | None = None  # until nobody is in the cell
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._warnings: queue.SimpleQueue[CellVerdict] = queue.SimpleQueue()
        self._deadline_ns = 0
        self._running = True
        self._done: Counter[bool] = Counter()  # tasks, by success
        self._missed = 0
        self._periods = 0
        self._body = BodyCondition()

    def post(self, event: Event) -> None:
        """Hands an event to the control thread; from any thread.

        A warning overtakes everything else: the motion of the next period that begins heeds it,
        however many events are waiting.
        """
        if isinstance(event, CellVerdict) and not event.safe:
            self._warnings.put(event)
        else:
            self._inbox.put(event)

    def run(self) -> None:
        """The control thread's body; returns after `Stop`, with the arm holding."""
        self._deadline_ns = monotonic_ns()
        period_ns = self._loop.config.period_ns
        while self._running:
            late = max(0, (monotonic_ns() - self._deadline_ns) // period_ns)
            self._missed += late
            self._deadline_ns += (late + 1) * period_ns
            self._handle_events_until_deadline()
            if self._running:
                self._period(monotonic_ns())
        self._end_postponed(STOPPED)
        if self._loop.task is not None:
            self._apply([self._loop.finish(STOPPED, monotonic_ns())])
        self._apply([Hold()])
        self._adapter.close()

    def _handle_events_until_deadline(self) -> None:
        while self._running:
            left_ns = self._deadline_ns - monotonic_ns()
            try:
                if left_ns > 0:
                    event = self._inbox.get(timeout=left_ns / 1e9)
                else:
                    event = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(event)
            if left_ns <= 0:  # one event per period also when late: neither side starves
                return

    def _handle(self, event: Event) -> None:
        match event:
            case Start(task, goal):
                self._heed_warnings()
                if self._warned():
                    self._postponed = event
                else:
                    self._start(task, goal)
            case Arrived(answer, now_ns):
                self._apply((self._supervisor or self._loop).receive(answer, now_ns))
            case Malformed():
                self._loop.dropped["malformed"] += 1
            case ServerFound():
                self._loop.ask_again(monotonic_ns())
            case ServerHeard(status, now_ns):
                if self._loop.binding is not None:
                    self._loop.binding.heard(status, now_ns)
            case Cancel(task_id):
                if self._postponed is not None and self._postponed.task.id == task_id:
                    self._end_postponed("canceled")
                elif self._loop.task is not None and self._loop.task.id == task_id:
                    self._apply([self._loop.finish("canceled", monotonic_ns())])
            case LimitsChanged(limits):
                self._guard.limit(limits)
            case StopControl():
                self._running = False
            case _ if self._supervisor is None:
                self._loop.dropped["not_supervised"] += 1
            case Planned(number, instruction, now_ns):
                self._apply(self._supervisor.planned(number, instruction, now_ns))
            case Refused(component, task_id, instruction, reason, now_ns):
                self._apply(
                    self._supervisor.refused(component, task_id, instruction, reason, now_ns)
                )
            case CellVerdict() | Progress() | Release() | ResetDone():
                self._apply(self._supervisor.feed(event))

    def _start(self, task: Task, goal: TaskGoal) -> None:
        try:
            if self._supervisor is not None and self._supervisor.state.mode is Mode.WAITING:
                raise KairosError("the robot waits for a human; release it first")
            self._reset(goal)
        except KairosError as error:
            if isinstance(error, BodyError):
                self._body.failed(error)
            self._fail(task, f"failed: {error}")
            return
        self._body.was_reset()
        self._goal = goal
        self._loop.start(task, self._deadline_ns)
        if self._supervisor is not None:
            self._apply(self._supervisor.feed(TaskStarted(self._deadline_ns)))

    def _reset(self, goal: TaskGoal) -> None:
        """Raises KairosError where the body cannot be prepared for this goal."""
        self._adapter.reset(goal)
        self._guard.reset(self._adapter.state())
        self._did = None
        if self._motion is not None:
            self._motion.begin()
        self._deadline_ns = monotonic_ns()  # a reset may take seconds; they are no missed periods

    def _fail(self, task: Task, outcome: str) -> None:
        """Ends a task that never began."""
        self._loop.start(task, monotonic_ns())
        self._apply([self._loop.finish(outcome, monotonic_ns())])

    def _end_postponed(self, outcome: str) -> None:
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            self._fail(postponed.task, outcome)

    def _heed_warnings(self) -> None:
        for _ in range(self._warnings.qsize()):
            self._handle(self._warnings.get())

    def _warned(self) -> bool:
        """Somebody is in the cell: preparing the body for a task may move it."""
        supervisor = self._supervisor
        now_ns = monotonic_ns()
        return supervisor is not None and is_warned(supervisor.rules, supervisor.state, now_ns)

    def _period(self, now_ns: int) -> None:
        self._periods += 1
        self._heed_warnings()
        if self._postponed is not None and not self._warned():
            postponed, self._postponed = self._postponed, None
            self._start(postponed.task, postponed.goal)
        if self._loop.task is not None and not self._monitored and self._adapter.succeeded():
            self._apply([self._loop.finish("succeeded", now_ns)])
        effects: Sequence[SupervisedEffect]
        try:
            self._watch_motion(now_ns)
            if self._supervisor is None:
                effects = self._loop.tick(now_ns, self._approve)
            else:
                effects = self._supervisor.tick(now_ns, self._approve, self._homeward)
        except KairosError as error:  # the guard, or the way home, looked at a body that fails
            self._body_failed(error)
        else:
            self._apply(effects)
        self._publish(now_ns)
        if self._body.is_ready:
            try:
                self._listener.period(self._adapter.state)
            except KairosError as error:
                self._body_failed(error)
        else:
            self._listener.unready()

    def _watch_motion(self, now_ns: int) -> None:
        """Raises KairosError where the body cannot be read."""
        motion = self._motion
        if motion is None or self._loop.task is None:
            return
        contact = motion.look(self._did, self._adapter.state(), now_ns)
        settle = motion.settle if motion.asks else None
        motion.early += self._loop.surprised(motion.surprise, settle)
        if contact:
            self._apply([self._loop.finish(contact, now_ns)])

    @property
    def _monitored(self) -> bool:
        """A monitor says when a task is done; what the body knows only scores it."""
        supervisor = self._supervisor
        return supervisor is not None and Component.MONITOR in supervisor.rules.components

    def _approve(self, action: np.ndarray) -> np.ndarray | None:
        before = self._guard.guarded
        safe = self._guard.check(action, self._adapter.state)
        if self._guard.guarded > before:
            self._loop.note_guarded()
        return safe

    def _apply(self, effects: Sequence[SupervisedEffect]) -> None:
        """Carries effects out; a body that fails ends the task and is left alone until a reset."""
        try:
            for effect in effects:
                self._carry_out(effect)
        except KairosError as error:
            self._body_failed(error)

    def _body_failed(self, error: KairosError) -> None:
        if self._loop.task is None and isinstance(error, BodyError) and error.passes:
            self._body.is_absent(error)
            return
        self._body.failed(error)
        if self._loop.task is not None:
            self._finish(self._loop.finish(f"failed: {error}", monotonic_ns()).result)

    def _carry_out(self, effect: SupervisedEffect) -> None:
        match effect:
            case Observe(earlier, instead):
                self._history.keep(earlier, instead=instead)
            case Send(request, observations, repeat):
                sent, shows_ns = self._history.put_into(request, observations, repeat=repeat)
                self._loop.observed(shows_ns)
                self._listener.send(sent)
            case AskPlan():
                began_ns = monotonic_ns()
                observation = self._adapter.observe()
                taken_ns = observation.taken_ns
                asked_ago_ns = monotonic_ns() - (began_ns if taken_ns is None else taken_ns)
                cast(SupervisionListener, self._judges).ask_plan(effect, observation, asked_ago_ns)
            case Moved(transition):
                task = self._loop.task or self.report.task  # that begins, or that has just ended
                cast(SupervisionListener, self._judges).moved(transition, task.id if task else "")
            case ResetBody():
                self._reset_body()
            case Act() if self._loop.is_late(monotonic_ns()):
                self._loop.was_late()
                self._did = None
                self._guard.held()
                self._adapter.hold()
            case Act(action):
                self._did = action
                self._listener.acting(action, self._adapter.state)
                self._adapter.act(action)
            case Hold():
                self._did = None
                self._guard.held()
                if self._body.is_ready:
                    self._adapter.hold()
                    self._body.is_back()
            case Finished(result):
                self._finish(result)

    def _reset_body(self) -> None:
        """For another attempt. What arrived meanwhile is heard before the attempt begins."""
        try:
            self._reset(self._goal)
        except KairosError as error:
            self._body.failed(error)
            supervisor = cast(Supervisor, self._supervisor)  # who asked for the reset
            self._apply(supervisor.feed(ResetFailed(monotonic_ns(), str(error))))
            return
        self._loop.was_reset(self._deadline_ns)
        self._inbox.put(ResetDone(self._deadline_ns))

    def _finish(self, result: TaskResult) -> None:
        if result.outcome in LIMITS and not self._monitored and self._adapter.succeeded() is None:
            result = replace(result, ended=True)
        self._done[result.success] += 1
        self._publish(monotonic_ns())
        self._listener.finished(result)
        if self._supervisor is not None and self._supervisor.state.task:
            self._apply(self._supervisor.feed(TaskEnded(monotonic_ns(), result.outcome)))

    def _publish(self, now_ns: int) -> None:
        before = self.report
        task = self._loop.task
        state = self._supervisor.state if self._supervisor else None
        execution = self._loop.execution(now_ns)
        busy = RobotState.HOLDING if execution.holding else RobotState.RUNNING
        binding = self._loop.binding
        self.report = Report(
            state=RobotState.IDLE if task is None else busy,
            task=task,
            instruction=(self._supervisor or self._loop).instruction,
            execution=execution,
            horizon=self._loop.horizon,
            task_actions=self._loop.task_executed,
            tasks_done=self._done.total(),
            tasks_succeeded=self._done[True],
            actions_executed=self._loop.executed,
            actions_guarded=self._guard.guarded,
            guarded_by=dict(+self._guard.counts),
            dropped=dict(self._loop.dropped),
            silences=self._loop.silences,
            surprises=self._motion.early if self._motion else 0,
            unusable_motion=self._motion.unusable if self._motion else 0,
            server=binding.server if binding else None,
            bound=binding.bound if binding else "",
            why_no_server=binding.why_none(now_ns) if binding and not binding.bound else "",
            misfit=binding.misfit if binding else "",
            policy=binding.asks_for if binding else "",
            other_servers=binding.describe_other_servers() if binding else "",
            rebound=binding.rebound if binding else 0,
            pauses=self._loop.pauses,
            paused_ns=self._loop.paused_ns,
            missed_periods=self._missed,
            periods=self._periods,
            network_ns=self._loop.latency.network_ns,
            body_fault=self._body.fault,
            body_faults=dict(self._body.faults),
            body_absence=self._body.absence,
            body_tolerated=dict(
                Counter(getattr(self._adapter, "tolerated", {})) + self._body.absences
            ),
            mode=state.mode if state else None,
            retries=state.retries if state else 0,
        )
        if _told(before) != _told(self.report):
            self._listener.changed(self.report)


def _told(report: Report) -> tuple[object, ...]:
    """What others hear of at once when it changes."""
    return report.state, report.task, report.mode, report.instruction, report.bound
