"""The robot node: one robot per process, named by its namespace. Thin over `kairos_ros.robot`.

Three threads: the control thread owns the body and the loop (`robot.control`), the executor thread
serves ROS, and the main thread waits for the signal to stop.
"""

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import rclpy
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks, QoSPublisherMatchedInfo
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.task import Future
from sensor_msgs.msg import JointState

from kairos_ros.action import ExecuteTask
from kairos_ros.core.errors import ConfigError, KairosError, WireError
from kairos_ros.core.exchange import Observation, Request
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ServerStatus
from kairos_ros.core.wire_check import printable
from kairos_ros.msg import (
    ActionChunk,
    ChunkRequest,
    ExecutionInfo,
    PolicyState,
    RobotStatus,
    TaskEvent,
)
from kairos_ros.msg import ServerStatus as ServerStatusMessage
from kairos_ros.nodes import qos
from kairos_ros.nodes.bounded import PICTURE_BYTES, subscribe
from kairos_ros.nodes.diagnostics import DiagnosticsPublisher
from kairos_ros.nodes.fleet_namespace import robot_in_fleet
from kairos_ros.nodes.parameters import declare
from kairos_ros.nodes.process import begin, give_up, log_by
from kairos_ros.nodes.robot.cameras import RobotCameras
from kairos_ros.nodes.robot.diagnostics import robot_diagnostic
from kairos_ros.nodes.robot.disturbances import Disturbable, RobotDisturbances
from kairos_ros.nodes.robot.messages import (
    Identity,
    answer_from,
    check_goal,
    execution_message,
    feedback_message,
    finished_message,
    joint_state_message,
    policy_state_message,
    request_message,
    result_message,
    started_message,
    status_message,
)
from kairos_ros.nodes.robot.parameters import (
    ROBOT_PARAMETERS,
    adapter_options,
    guard_limits,
    initial_latency,
    loop_config,
)
from kairos_ros.nodes.robot.pipeline import RobotPipeline
from kairos_ros.nodes.robot.ros2_body import ros2_body
from kairos_ros.nodes.robot.truth import Knowing, RobotTruth
from kairos_ros.nodes.server_messages import server_from
from kairos_ros.nodes.throttle import Throttle
from kairos_ros.nodes.timers import every, set_rate
from kairos_ros.nodes.topic_publishers import strange_publishers
from kairos_ros.robot.adapter import Jointed, TaskGoal
from kairos_ros.robot.adapters.registry import make_adapter
from kairos_ros.robot.body_log import BodyLog, LoggedBody, log_path
from kairos_ros.robot.cameras.camera_map import read_camera_map
from kairos_ros.robot.control import Controller
from kairos_ros.robot.control_events import (
    Arrived,
    Cancel,
    Limited,
    Malformed,
    ServerFound,
    ServerHeard,
    Start,
    Stop,
)
from kairos_ros.robot.control_report import Report
from kairos_ros.robot.guard import ActionGuard, require_tighter
from kairos_ros.robot.loop import Loop
from kairos_ros.robot.name_owner import NameOwner
from kairos_ros.robot.server_binding import ServerBinding
from kairos_ros.robot.supervision.rules_text import parse_rules
from kairos_ros.robot.supervision.supervisor import Supervisor
from kairos_ros.robot.task import Task, TaskResult

FEEDBACK_PERIOD_S = 0.5
HEARTBEAT_PERIOD_S = 1.0
LAST_RESULT_S = 1.0
NAME_PERIOD_S = 0.25
LAST_CALLBACKS = 10


class RobotNode(Node):
    """Topics, action and parameters of one robot; the `ControlListener` of its controller.

    Raises ConfigError for anything wrong in the parameters or the namespace, and SystemExit for a
    body that cannot be used.
    """

    def __init__(self) -> None:
        super().__init__("robot")
        log_by(self)
        values = declare(self, ROBOT_PARAMETERS)
        self._values = values
        names, robot = robot_in_fleet(self, values["name"])
        self._throttle = Throttle(self.get_logger(), burst=5, every_s=1.0)
        rate_hz = values["control_rate_hz"]
        options = adapter_options(values["adapter_options"])
        bodies = {"ros2": partial(ros2_body, self, names)}
        try:
            adapter = make_adapter(values["adapter"], rate_hz, options, bodies)
        except KairosError as error:
            give_up(self, error)
        spec, self._body = adapter.spec, adapter
        self._who = Identity(
            robot,
            session=uuid.uuid4().hex,
            spec=spec,
            camera_map=read_camera_map(values["camera_map"], spec.images),
            absent=tuple(values["absent_cameras"]),
            sends_pictures=values["request_images"],
        )
        self._body_log: BodyLog | None = None
        if values["body_log"]:
            path = log_path(Path(values["body_log"]), robot, self._who.session)
            self._body_log = BodyLog(path)
            adapter = LoggedBody(adapter, self._body_log)
        config = loop_config(values, robot, self._who.session, spec.action_dim)
        self._limits = guard_limits(values, self._body)
        guard = self._guard = ActionGuard(self._limits, spec.action_dim, spec.state_dim, rate_hz)
        binding = ServerBinding(robot, self._who.interface, values["policy"])
        loop = Loop(config, initial_latency(values), binding)
        self._cameras = RobotCameras(self, list(spec.images), values["camera_rate_hz"])
        if isinstance(self._body, Knowing):
            self._cameras.published = RobotTruth(self, self._who, self._body).tell
        self._disturbances: RobotDisturbances | None = None
        if values["disturbances"]:
            if not isinstance(self._body, Disturbable):
                raise ConfigError(
                    f"parameter disturbances: adapter {values['adapter']!r} is no simulated body"
                )
            self._disturbances = RobotDisturbances(self, robot, self._body)
        self._pipeline: RobotPipeline | None = None
        if values["rules"]:
            supervisor = Supervisor(loop, parse_rules(values["rules"]))
            self._pipeline = RobotPipeline(self, self._who, supervisor, self._cameras)
            judged = (supervisor, self._pipeline)
            self.controller = Controller(adapter, loop, guard, self, judged)
            self._pipeline.controller = self.controller
        else:
            self.controller = Controller(adapter, loop, guard, listener=self)

        self._goal: tuple[str, Future] | None = None  # running task's id and result
        self._goal_handle: ServerGoalHandle | None = None
        self._tasks = 0
        self._results: deque[TaskResult] = deque()
        self._results_came = self.create_guard_condition(self._deliver_results)
        self._diagnosed = Report()
        self._held_since: float | None = None
        self._foreign_publishers: list[str] = []

        self._status = self.create_publisher(
            RobotStatus, names.common("robot_status"), qos.ANNOUNCEMENT
        )
        self._requests = self.create_publisher(
            ChunkRequest,
            "chunk_request",
            qos.EXCHANGE,
            event_callbacks=PublisherEventCallbacks(matched=self._on_matched),
        )
        self._events = self.create_publisher(TaskEvent, "task_events", qos.EVENTS)
        quiet = PublisherEventCallbacks(use_default_callbacks=False)
        self._states = self.create_publisher(
            PolicyState, "policy_state", qos.EVENTS, event_callbacks=quiet
        )
        self._joints: Publisher | None = None
        if isinstance(self._body, Jointed) and self._body.joint_names:
            self._joints = self.create_publisher(
                JointState, "joint_states", qos.EVENTS, event_callbacks=quiet
            )
        self._state_names = list(spec.state_names) or [f"state_{i}" for i in range(spec.state_dim)]
        self._periods = 0
        self._info = self.create_publisher(ExecutionInfo, "execution_info", qos.TELEMETRY)
        self._diagnostics = DiagnosticsPublisher(self, names)
        subscribe(
            self,
            ActionChunk,
            "action_chunk",
            self._on_chunk,
            qos.EXCHANGE,
            most_bytes=PICTURE_BYTES,
            refused=self._on_unreadable,
        )
        subscribe(
            self,
            ServerStatusMessage,
            names.common("server_status"),
            self._on_server,
            qos.ROSTER,
            refused=self._on_unreadable_server,
        )
        self._action: ActionServer | None = None
        self._owner = NameOwner(self._who.session, time.monotonic_ns())
        self._left_to = ""
        """Session of another node of this name that takes goals."""
        subscribe(
            self,
            RobotStatus,
            names.common("robot_status"),
            self._on_namesake,
            qos.ROSTER,
            robot=robot,
        )
        every(self, NAME_PERIOD_S, self._take_or_leave_name)
        every(self, HEARTBEAT_PERIOD_S, self._on_heartbeat)
        every(self, FEEDBACK_PERIOD_S, self._on_feedback)
        self._info_timer = every(self, 1.0, self._on_info)
        set_rate(self._info_timer, values["execution_info_rate_hz"])
        values.on_change(self._on_parameters)
        self.changed(self.controller.report)
        self.get_logger().info(
            f"robot {robot} is up: adapter={values['adapter']} rate_hz={rate_hz:g} "
            f"session={self._who.session[:8]}"
        )

    # Called by the controller, in the control thread.

    def send(self, request: Request) -> None:
        observation, earlier = request.observation, request.earlier
        observed_ns = time.monotonic_ns() - request.observed_ago_ns
        self._cameras.show(observation, observed_ns, request.id.task)
        if not self._values["request_images"]:
            observation = Observation(observation.state)
            earlier = tuple(Observation(seen.state) for seen in earlier)
        deadline_ns = round(self._values["deadline_s"] * 1e9)
        sent = replace(request, observation=observation, earlier=earlier, deadline_ns=deadline_ns)
        self._requests.publish(request_message(self._who, sent))

    def changed(self, report: Report) -> None:
        message = status_message(self._who, report)
        if (goal := self._goal) is not None and not message.task:
            message.task, message.state = goal[0], RobotState.HOLDING  # the body is being prepared
        message.takes_goals_s = self._owner.has_it_s(time.monotonic_ns())
        self._status.publish(message)

    def finished(self, result: TaskResult) -> None:
        self._results.append(result)
        self._results_came.trigger()

    def period(self, state: Callable[[], np.ndarray]) -> None:
        self._periods += 1
        if self._pipeline is not None:
            self._pipeline.period()
        if self._disturbances is not None:
            self._disturbances.period()
        report = self.controller.report
        if report.task is not None and report.instruction:  # else there is nothing to judge by
            self._cameras.look(self._body.observe, report.task.id)
        if self._due("policy_state_every", self._states):
            now = self.get_clock().now().to_msg()
            self._states.publish(policy_state_message(self._state_names, state(), now))
        self._publish_joints()

    def unready(self) -> None:
        self._periods += 1
        self._publish_joints()

    def _publish_joints(self) -> None:
        if self._joints is None or not self._due("joint_states_every", self._joints):
            return
        body = cast(Jointed, self._body)
        positions = body.joint_positions()
        if positions is not None:
            now = self.get_clock().now().to_msg()
            self._joints.publish(joint_state_message(body.joint_names, positions, now))

    def _due(self, every: str, publisher: Publisher) -> bool:
        """In this period, and somebody subscribes. every: the parameter with its periods."""
        periods = self._values[every]
        return periods and self._periods % periods == 0 and publisher.get_subscription_count() > 0

    # Callbacks of the executor thread.

    def _on_chunk(self, message: ActionChunk) -> None:
        now_ns = time.monotonic_ns()
        try:
            self.controller.post(Arrived(answer_from(message), now_ns))
        except WireError as error:
            self._on_unreadable(error)

    def _on_unreadable(self, error: WireError, raw: bytes = b"") -> None:
        self.get_logger().warning(f"dropped a chunk: {error}", throttle_duration_sec=5.0)
        self.controller.post(Malformed())

    @property
    def server(self) -> ServerStatus | None:
        """The newest status of the serving node that this robot asks; None where there is none."""
        return self.controller.report.server

    def _on_server(self, message: ServerStatusMessage) -> None:
        now_ns = time.monotonic_ns()
        try:
            self.controller.post(ServerHeard(server_from(message), now_ns))
        except WireError as error:
            self._on_unreadable_server(error)

    def _on_unreadable_server(self, error: WireError, raw: bytes = b"") -> None:
        self.get_logger().warning(f"ignored {error}", throttle_duration_sec=5.0)

    def _on_matched(self, info: QoSPublisherMatchedInfo) -> None:
        if info.current_count_change > 0:
            self.controller.post(ServerFound())

    def _on_goal(self, goal: ExecuteTask.Goal) -> GoalResponse:
        if self._left_to:
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
        if status.robot == self._who.robot:
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
        if left_to and left_to != self._left_to:
            self.get_logger().error(
                f"another robot node is called {self._who.robot} (session {printable(left_to)}); "
                "this one takes no goals while that one is there. End one of them"
            )
        self._left_to = left_to
        if self._action is None and not left_to and not self._owner.listens(now_ns):
            self._action = ActionServer(
                self,
                ExecuteTask,
                "execute_task",
                self._execute,
                goal_callback=self._on_goal,
                cancel_callback=self._on_cancel,
            )
            self._owner.takes(now_ns)
            self.changed(self.controller.report)
        elif self._action is not None and left_to:
            if self._goal is not None:
                self.controller.post(Cancel(self._goal[0]))
            else:
                self._action.destroy()
                self._action = None
                self._owner.leaves()
                self.changed(self.controller.report)

    def _on_cancel(self, handle: ServerGoalHandle) -> CancelResponse:
        if self._goal is None:
            return CancelResponse.REJECT
        self.controller.post(Cancel(self._goal[0]))
        return CancelResponse.ACCEPT

    async def _execute(self, handle: ServerGoalHandle) -> ExecuteTask.Result:
        assert self._goal is not None  # set when the goal was accepted
        task_id, done = self._goal
        self._goal_handle = handle
        try:
            result = await self._run_task(task_id, handle.request, done)
        finally:  # whatever went wrong, the next goal is welcome
            self._goal_handle = self._goal = None
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
            self.get_logger().error(text)
        elif result.outcome.startswith("refused"):
            self.get_logger().warning(text)
        else:
            self.get_logger().info(text)

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
        self.get_logger().info(f"task {task_id} begins: '{printable(goal.instruction)}'{where}")
        self._events.publish(started_message(self._who, task, scene))
        if self._body_log is not None:
            self._body_log.write("task", task_id)
        self.controller.post(Start(task, scene))
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
        report = self.controller.report
        if self._goal_handle is not None and report.task is not None:
            self._goal_handle.publish_feedback(feedback_message(report))

    def _on_info(self) -> None:
        rate_hz = self._who.spec.control_rate_hz
        self._info.publish(execution_message(self.controller.report.execution, rate_hz))

    def _on_heartbeat(self) -> None:
        report = self.controller.report
        self.changed(report)
        if report.misfit and report.misfit != self._diagnosed.misfit:
            self.get_logger().error(f"{report.server} cannot serve this robot: {report.misfit}")
        if report.state is not RobotState.HOLDING:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = time.monotonic()
        held_s = time.monotonic() - self._held_since if self._held_since is not None else 0.0
        if self._pipeline is not None and report.task is None:
            self._pipeline.publish()  # what a body that failed no longer gets to tell
        pipeline = self._pipeline
        status = robot_diagnostic(
            self._who.robot,
            report,
            self._diagnosed,
            held_s,
            self._values,
            unused=pipeline.dropped if pipeline else {},
            last=pipeline.last if pipeline else None,
            strange=self._strange(report),
        )
        self._diagnosed = report
        self._diagnostics.publish([status])

    def _strange(self, report: Report) -> list[str]:
        """Who publishes on this robot's topics and should not; logged when that changes."""
        strange = strange_publishers(self, report.server)
        if self._left_to:
            strange.append(
                f"another node of this name, so that this one takes no goals: {self._left_to}"
            )
        if strange and strange != self._foreign_publishers:
            self.get_logger().error(f"others act as this robot or its server: {'; '.join(strange)}")
        self._foreign_publishers = strange
        return strange

    def _on_parameters(self, values: Mapping[str, Any], changed: Set[str]) -> None:
        """Raises ConfigError for what does not fit the robot, or a task that runs."""
        if any(name.startswith("guard.") for name in changed):
            limits = guard_limits(values, self._body)
            self._guard.check_limits(limits)
            if self.busy:
                require_tighter(self._limits, limits)
            self._limits = limits
            self.controller.post(Limited(limits))
        if "execution_info_rate_hz" in changed:
            set_rate(self._info_timer, values["execution_info_rate_hz"])
        self._cameras.set_rate(values["camera_rate_hz"])

    @property
    def busy(self) -> bool:
        """A goal was accepted and its result is not out yet."""
        return self._goal is not None

    def leave(self) -> None:
        """Says goodbye; the robot's id is free at once. After the executor has stopped."""
        message = status_message(self._who, self.controller.report)
        message.state = RobotState.LEAVING
        self._status.publish(message)
        self._status.wait_for_all_acked(Duration(seconds=1))


def main() -> int:
    """Runs the node until SIGINT or SIGTERM. Exit code 0 then, 1 after an error."""
    node, executor, stop = begin("robot_node", RobotNode)
    ended_well: list[str] = []

    def control() -> None:
        try:
            node.controller.run()
            ended_well.append("control")
        finally:
            stop.set()

    def serve() -> None:
        try:
            while not stop.is_set():
                executor.spin_once(timeout_sec=0.1)
            ended_well.append("executor")
        finally:
            stop.set()

    threads = [threading.Thread(target=run, name=run.__name__) for run in (control, serve)]
    for thread in threads:
        thread.start()
    stop.wait()
    node.controller.post(Stop())
    for thread in threads:
        thread.join()
    give_up = time.monotonic() + LAST_RESULT_S
    while node.busy and time.monotonic() < give_up:
        executor.spin_once(timeout_sec=0.05)
    for _ in range(LAST_CALLBACKS):  # so that a waiting action client has its result
        executor.spin_once(timeout_sec=0.01)
    executor.shutdown()
    node.leave()
    node.destroy_node()
    rclpy.shutdown()
    return 0 if len(ended_well) == len(threads) else 1
