"""The tasks of one robot: its action server, while it is the one node of its name."""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, cast

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node
from rclpy.task import Future

from kairos_ros.action import ExecuteTask
from kairos_ros.core.errors import KairosError, WireError
from kairos_ros.core.execution.task import Task, TaskResult
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.core.wire_check import printable
from kairos_ros.host.dds_deadlock import changing_entities
from kairos_ros.msg import RobotStatus, TaskEvent
from kairos_ros.nodes import qos
from kairos_ros.nodes.announcements import Announcements
from kairos_ros.nodes.bounded import subscribe
from kairos_ros.nodes.executor_call import ExecutorCall
from kairos_ros.nodes.robot.messages import (
    Identity,
    check_goal,
    feedback_message,
    finished_message,
    result_message,
    started_message,
)
from kairos_ros.nodes.throttle import Throttle
from kairos_ros.nodes.timers import every
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.body_log import BodyLog
from kairos_ros.robot.control import Controller
from kairos_ros.robot.control_events import Cancel, Start
from kairos_ros.robot.name_owner import NameOwner

FEEDBACK_PERIOD_S = 0.5
NAME_PERIOD_S = 0.25
RESULT_NS = 1_000_000_000
"""For so long a result can still be asked for."""
ENDED_WITHIN_S = 30.0
"""A body that is being prepared for a task hears of its end only afterwards."""


class RobotTasks:
    """Gives goals to the controller and tells how they end. Used by the executor thread, but for
    `finished`.

    values: the node's parameters. changed: the robot's status is to be told.
    """

    def __init__(
        self,
        node: Node,
        names: FleetNames,
        who: Identity,
        values: Mapping[str, Any],
        controller: Controller,
        changed: Callable[[], None],
        body_log: BodyLog | None,
    ) -> None:
        self._node, self._who, self._values = node, who, values
        self._controller, self._changed, self._body_log = controller, changed, body_log
        self._throttle = Throttle(node.get_logger(), burst=5, every_s=1.0)
        self._goal: tuple[str, Future] | None = None  # running task's id and result
        self._goal_handle: ServerGoalHandle | None = None
        self._ended_ns = 0  # when the last task did
        self._tasks = 0
        self._results: deque[TaskResult] = deque()
        self._results_call = ExecutorCall(node, self._deliver_results)
        self._events = node.create_publisher(TaskEvent, "task_events", qos.EVENTS)
        self._open = False
        self._action: ActionServer | None = None
        self._owner = NameOwner(who.session, time.monotonic_ns())
        self.name_left_to = ""
        """Session of another node of this name that takes goals; empty: there is none."""
        self.refused: Counter[str] = Counter()
        """Statuses of this name that no robot node sends."""
        self._announcements = Announcements(node.get_logger(), self.refused)
        subscribe(
            node,
            RobotStatus,
            names.common("robot_status"),
            self._on_namesake,
            qos.ROSTER,
            refused=self._announcements.refuse,
            robot=who.robot,
        )
        every(node, NAME_PERIOD_S, self._take_or_leave_name)
        every(node, FEEDBACK_PERIOD_S, self._on_feedback)

    @property
    def accepted(self) -> str:
        """The task whose goal was accepted and whose result is not out yet; empty: none."""
        goal = self._goal
        return goal[0] if goal is not None else ""

    @property
    def has_name_s(self) -> float:
        """For how long this node has had the action server of its name; 0: it has none."""
        return self._owner.has_it_s(time.monotonic_ns())

    def open(self) -> None:
        """Takes goals from now on, where no other node has the name."""
        self._open = True
        self._take_or_leave_name()

    def rest(self) -> None:
        """Takes no goals, and returns once the one that runs has ended.

        Raises KairosError where it does not end soon; goals are taken as before then.
        """
        self._open = False
        give_up_s = time.monotonic() + ENDED_WITHIN_S
        if self._goal is not None:
            self._controller.post(Cancel(self._goal[0]))
        while self._goal_handle is not None and not self._results:
            if time.monotonic() > give_up_s:
                self._open = True
                raise KairosError(f"the task has not ended within {ENDED_WITHIN_S:g} s; try again")
            time.sleep(0.005)
        self._deliver_results()
        self._take_or_leave_name()

    def close(self) -> None:
        """Has no action server; whoever still waits for a result sees it go."""
        if self._action is not None:
            with changing_entities():
                self._action.destroy()
            self._action = None
            self._owner.leaves()

    def finished(self, result: TaskResult) -> None:
        """From the control thread."""
        self._results.append(result)
        self._results_call.ask()

    def _on_goal(self, goal: ExecuteTask.Goal) -> GoalResponse:
        if not self._open:
            self._throttle.warning("inactive", "goal rejected: the node is not active")
            return GoalResponse.REJECT
        if self.name_left_to:
            self._throttle.warning("namesake", "goal rejected: another node has this name")
            return GoalResponse.REJECT
        if self._goal is not None:
            self._throttle.warning("busy", f"goal rejected: task {self._goal[0]} is still running")
            return GoalResponse.REJECT
        try:
            check_goal(goal, self._who.spec.control_rate_hz)
        except WireError as error:
            self._throttle.warning("goal", f"goal rejected: {error}")
            return GoalResponse.REJECT
        self._tasks += 1
        self._goal = (str(self._tasks), Future())
        return GoalResponse.ACCEPT

    def _on_namesake(self, status: RobotStatus) -> None:
        robot = self._who.robot
        if status.robot == robot and self._announcements.read(status, (robot,)) is not None:
            leaving = status.state == RobotStatus.LEAVING
            self._owner.heard(
                status.session,
                time.monotonic_ns(),
                status.takes_goals_s,
                leaving=leaving,
            )

    def _take_or_leave_name(self) -> None:
        """Has the action server of this robot's name where no other node has it."""
        now_ns = time.monotonic_ns()
        left_to = self._owner.owner(now_ns)
        if left_to and left_to != self.name_left_to:
            self._node.get_logger().error(
                f"another robot node is called {self._who.robot} (session {printable(left_to)}); "
                "this one takes no goals while that one is there. End one of them"
            )
        self.name_left_to = left_to
        if self._action is None:
            if left_to or not self._open or self._owner.listens(now_ns):
                return
            with changing_entities():
                self._action = ActionServer(
                    self._node,
                    ExecuteTask,
                    "execute_task",
                    self._execute,
                    goal_callback=self._on_goal,
                    cancel_callback=self._on_cancel,
                )
            self._owner.takes(now_ns)
            self._changed()
        elif left_to or not self._open:
            if self._goal is not None:
                self._controller.post(Cancel(self._goal[0]))
            elif now_ns - self._ended_ns > RESULT_NS:
                self.close()
                self._changed()

    def _on_cancel(self, handle: ServerGoalHandle) -> CancelResponse:
        if self._goal is None:
            return CancelResponse.REJECT
        self._controller.post(Cancel(self._goal[0]))
        return CancelResponse.ACCEPT

    async def _execute(self, handle: ServerGoalHandle) -> ExecuteTask.Result:
        assert self._goal is not None  # set when the goal was accepted
        task_id, done = self._goal
        if not self._open:  # since it was accepted
            self._goal = None
            handle.abort()
            return ExecuteTask.Result(outcome="refused: the node is not active any more")
        self._goal_handle = handle
        try:
            result = await self._run_task(task_id, handle.request, done)
        finally:  # whatever went wrong, the next goal is welcome
            self._goal_handle = self._goal = None
            self._ended_ns = time.monotonic_ns()
        self._log_end(result)
        if result.success or result.ended:
            handle.succeed()
        elif result.outcome == "canceled" and handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.abort()
        return result_message(result)

    def _log_end(self, result: TaskResult) -> None:
        text = (
            f"task {result.task.id} ended: {printable(result.outcome, 500)} "
            f"actions={result.actions} rounds={len(result.round_executed)} "
            f"stalled_s={result.stalled_ns / 1e9:.2f}"
        )
        if result.outcome.startswith("failed"):
            self._node.get_logger().error(text)
        elif result.outcome.startswith("refused"):
            self._node.get_logger().warning(text)
        else:
            self._node.get_logger().info(text)

    async def _run_task(self, task_id: str, goal: ExecuteTask.Goal, done: Future) -> TaskResult:
        task = Task(
            id=task_id,
            instruction=goal.instruction,
            kind=goal.task_kind or goal.instruction,
            horizon_policy=goal.horizon_policy or self._values["horizon_policy"],
            seed=goal.seed,
            max_actions=goal.max_actions,
            max_duration_ns=round(goal.max_duration_s * 1e9),
            policy=goal.policy or self._values["policy"],
        )
        scene = TaskGoal(goal.instruction, goal.scene, goal.seed)
        where = f", scene {printable(goal.scene)}" if goal.scene else ""
        self._node.get_logger().info(
            f"task {task_id} begins: '{printable(goal.instruction)}'{where}"
        )
        self._events.publish(started_message(self._who, task, scene))
        if self._body_log is not None:
            self._body_log.write("task", task_id)
        self._controller.post(Start(task, scene))
        result = cast(TaskResult, await done)
        ago_s = (time.monotonic_ns() - result.started_ns) / 1e9
        self._events.publish(finished_message(self._who, result, scene, ago_s))
        return result

    def _deliver_results(self) -> None:
        while self._results:
            result = self._results.popleft()
            if self._goal is not None and self._goal[0] == result.task.id:
                self._goal[1].set_result(result)

    def _on_feedback(self) -> None:
        report = self._controller.report
        if self._goal_handle is not None and report.task is not None:
            self._goal_handle.publish_feedback(feedback_message(report))
