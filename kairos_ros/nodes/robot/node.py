"""The robot node: one robot per process, named by its namespace. Thin over `kairos_ros.robot`.

Three threads: the control thread owns the body and the loop (`robot.control`), the executor thread
serves ROS, and the main thread waits for the signal to stop.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import rclpy
from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks, QoSPublisherMatchedInfo
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import JointState

from kairos_ros.core.errors import ConfigError, KairosError, WireError
from kairos_ros.core.exchange import Observation, Request
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ServerStatus
from kairos_ros.core.wire_check import check_text
from kairos_ros.msg import (
    ActionChunk,
    ChunkRequest,
    ExecutionInfo,
    PolicyState,
    RobotStatus,
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
    execution_message,
    joint_state_message,
    policy_state_message,
    request_message,
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
from kairos_ros.nodes.robot.tasks import RobotTasks
from kairos_ros.nodes.robot.truth import Knowing, RobotTruth
from kairos_ros.nodes.server_messages import server_from
from kairos_ros.nodes.timers import every, set_rate
from kairos_ros.nodes.topic_publishers import strange_publishers
from kairos_ros.robot.adapter import Jointed
from kairos_ros.robot.adapters.registry import make_adapter
from kairos_ros.robot.body_log import BodyLog, LoggedBody, log_path
from kairos_ros.robot.cameras.camera_map import read_camera_map
from kairos_ros.robot.control import Controller
from kairos_ros.robot.control_events import (
    Arrived,
    Limited,
    Malformed,
    ServerFound,
    ServerHeard,
    Stop,
)
from kairos_ros.robot.control_report import Report
from kairos_ros.robot.guard import ActionGuard, require_tighter
from kairos_ros.robot.loop import Loop
from kairos_ros.robot.server_binding import ServerBinding
from kairos_ros.robot.supervision.rules_text import parse_rules
from kairos_ros.robot.supervision.supervisor import Supervisor
from kairos_ros.robot.task import TaskResult

HEARTBEAT_PERIOD_S = 1.0
LAST_RESULT_S = 1.0
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
        self.tasks = RobotTasks(
            self,
            names,
            self._who,
            values,
            self.controller,
            lambda: self.changed(self.controller.report),
            self._body_log,
        )
        every(self, HEARTBEAT_PERIOD_S, self._on_heartbeat)
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
        if (task := self.tasks.accepted) and not message.task:
            message.task, message.state = task, RobotState.HOLDING  # the body is being prepared
        message.takes_goals_s = self.tasks.has_name_s
        self._status.publish(message)

    def finished(self, result: TaskResult) -> None:
        self.tasks.finished(result)

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
            refused=self.tasks.refused,
            strange=self._strange(report),
        )
        self._diagnosed = report
        self._diagnostics.publish([status])

    def _strange(self, report: Report) -> list[str]:
        """Who publishes on this robot's topics and should not; logged when that changes."""
        strange = strange_publishers(self, report.server)
        if other := self.tasks.name_left_to:
            strange.append(f"another node of this name, so that this one takes no goals: {other}")
        if strange and strange != self._foreign_publishers:
            self.get_logger().error(f"others act as this robot or its server: {'; '.join(strange)}")
        self._foreign_publishers = strange
        return strange

    def _on_parameters(self, values: Mapping[str, Any], changed: Set[str]) -> None:
        """Raises ConfigError for what does not fit the robot, or a task that runs."""
        check_text("parameter horizon_policy", values["horizon_policy"])
        if any(name.startswith("guard.") for name in changed):
            limits = guard_limits(values, self._body)
            self._guard.check_limits(limits)
            if self.tasks.accepted:
                require_tighter(self._limits, limits)
            self._limits = limits
            self.controller.post(Limited(limits))
        if "execution_info_rate_hz" in changed:
            set_rate(self._info_timer, values["execution_info_rate_hz"])
        self._cameras.set_rate(values["camera_rate_hz"])

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
    while node.tasks.accepted and time.monotonic() < give_up:
        executor.spin_once(timeout_sec=0.05)
    for _ in range(LAST_CALLBACKS):  # so that a waiting action client has its result
        executor.spin_once(timeout_sec=0.01)
    executor.shutdown()
    node.leave()
    node.destroy_node()
    rclpy.shutdown()
    return 0 if len(ended_well) == len(threads) else 1
