"""One session of a robot: its body, its controller and its topics, between configure and cleanup.

The control thread owns the body and the loop (`robot.control`); everything else here is used by the
executor thread.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from rclpy.duration import Duration
from rclpy.event_handler import PublisherEventCallbacks, QoSPublisherMatchedInfo
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import JointState

from kairos_ros.core.errors import ConfigError, WireError
from kairos_ros.core.exchange import Observation, Request
from kairos_ros.core.execution.loop import Loop
from kairos_ros.core.execution.server_binding import ServerBinding
from kairos_ros.core.execution.task import TaskResult
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.core.robot_state import RobotState
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
from kairos_ros.nodes.messages.server import server_from
from kairos_ros.nodes.robot.cameras import RobotCameras
from kairos_ros.nodes.robot.disturbances import Disturbable, RobotDisturbances
from kairos_ros.nodes.robot.messages import (
    ControlTick,
    Identity,
    execution_message,
    joint_state_message,
    policy_state_message,
    request_message,
    status_message,
)
from kairos_ros.nodes.robot.parameters import (
    adapter_options,
    guard_limits,
    initial_latency,
    loop_config,
    motion_watch,
)
from kairos_ros.nodes.robot.pipeline import RobotPipeline
from kairos_ros.nodes.robot.tasks import RobotTasks
from kairos_ros.nodes.robot.truth import Knowing, RobotTruth
from kairos_ros.nodes.timers import every, set_rate
from kairos_ros.robot.adapter import Jointed, RobotAdapter
from kairos_ros.robot.adapters.registry import make_adapter
from kairos_ros.robot.body_log import BodyLog, LoggedBody, log_path
from kairos_ros.robot.cameras.camera_map import read_camera_map
from kairos_ros.robot.control import Controller
from kairos_ros.robot.control_events import (
    Arrived,
    LimitsChanged,
    Malformed,
    ServerFound,
    ServerHeard,
    StopControl,
)
from kairos_ros.robot.control_report import Report
from kairos_ros.robot.guard import ActionGuard, require_tighter
from kairos_ros.robot.supervision.rules_text import parse_rules
from kairos_ros.robot.supervision.supervisor import Supervisor
from kairos_ros.telemetry.answer import answer_of


def open_body(node: Node, names: FleetNames, values: Mapping[str, Any]) -> RobotAdapter:
    """The body that the parameters name. Raises KairosError where it cannot be used."""

    def behind_drivers(
        control_rate_hz: float,
        *,
        contract: str,
        drivers: Sequence[str] = (),
        start_within_s: float = 30.0,
    ) -> RobotAdapter:
        from kairos_ros.nodes.robot.drivers.body import ros2_body  # takes a third of a node's start

        return ros2_body(
            node,
            names,
            control_rate_hz,
            contract=contract,
            drivers=drivers,
            start_within_s=start_within_s,
        )

    return make_adapter(
        values["adapter"],
        values["control_rate_hz"],
        adapter_options(values["adapter_options"]),
        {"ros2": behind_drivers},
    )


class RobotSession:
    """Topics and tasks of a robot with a body; the `ControlListener` of its controller.

    The body is closed at the end of the control thread, and by whoever made it where the
    construction fails. Raises ConfigError for parameters that do not fit it.
    """

    def __init__(
        self,
        node: Node,
        names: FleetNames,
        robot: str,
        values: Mapping[str, Any],
        body: RobotAdapter,
    ) -> None:
        """values: parameters of the node, as they are at any time."""
        self._node, self._values, self._body = node, values, body
        spec, rate_hz = body.spec, values["control_rate_hz"]
        self._who = Identity(
            robot,
            session=uuid.uuid4().hex,
            spec=spec,
            camera_map=read_camera_map(values["camera_map"], spec.images),
            absent=tuple(values["absent_cameras"]),
            sends_pictures=values["request_images"],
        )
        self.id = self._who.session
        config = loop_config(values, robot, self.id, spec.action_dim)
        self._limits = guard_limits(values, body)
        self._guard = ActionGuard(self._limits, spec.action_dim, spec.state_dim, rate_hz)
        binding = ServerBinding(robot, self._who.interface, values["policy"])
        loop = Loop(config, initial_latency(values), binding)
        self._cameras = RobotCameras(node, list(spec.images), values["camera_rate_hz"])
        if isinstance(body, Knowing):
            self._cameras.published = RobotTruth(node, self._who, body).tell
        self._disturbances: RobotDisturbances | None = None
        if values["disturbances"]:
            if not isinstance(body, Disturbable):
                raise ConfigError(
                    f"parameter disturbances: adapter {values['adapter']!r} is no simulated body"
                )
            self._disturbances = RobotDisturbances(node, robot, body)
        self._body_log: BodyLog | None = None
        controlled = body
        if values["body_log"]:
            self._body_log = BodyLog(log_path(Path(values["body_log"]), robot, self.id))
            controlled = LoggedBody(body, self._body_log)
        motion = motion_watch(values, self._limits, spec.state_names)
        self.pipeline: RobotPipeline | None = None
        if values["rules"]:
            supervisor = Supervisor(loop, parse_rules(values["rules"]))
            self.pipeline = RobotPipeline(node, self._who, supervisor, self._cameras)
            judged = (supervisor, self.pipeline)
            self.controller = Controller(controlled, loop, self._guard, self, judged, motion)
            self.pipeline.controller = self.controller
        else:
            self.controller = Controller(controlled, loop, self._guard, self, motion=motion)
        self._open_topics(names)
        self.tasks = RobotTasks(
            node, names, self._who, values, self.controller, self.tell, self._body_log
        )
        self._info_timer = every(node, 1.0, self._on_info)
        set_rate(self._info_timer, values["execution_info_rate_hz"])
        self.failed = False
        """The control thread ended with an error."""
        self._thread = threading.Thread(target=self._control, name="control", daemon=True)

    def _open_topics(self, names: FleetNames) -> None:
        node = self._node
        self._status = node.create_publisher(
            RobotStatus, names.common("robot_status"), qos.ANNOUNCEMENT
        )
        self._requests = node.create_publisher(
            ChunkRequest,
            "chunk_request",
            qos.EXCHANGE,
            event_callbacks=PublisherEventCallbacks(matched=self._on_matched),
        )
        quiet = PublisherEventCallbacks(use_default_callbacks=False)
        self._states = node.create_publisher(
            PolicyState, "policy_state", qos.EVENTS, event_callbacks=quiet
        )
        self._joints: Publisher | None = None
        if isinstance(self._body, Jointed) and self._body.joint_names:
            self._joints = node.create_publisher(
                JointState, "joint_states", qos.EVENTS, event_callbacks=quiet
            )
        self._periods = 0
        self._acted: ControlTick | None = None
        """In the period that ends."""
        self._info = node.create_publisher(ExecutionInfo, "execution_info", qos.TELEMETRY)
        subscribe(
            node,
            ActionChunk,
            "action_chunk",
            self._on_chunk,
            qos.EXCHANGE,
            most_bytes=PICTURE_BYTES,
            refused=self._on_unreadable,
        )
        subscribe(
            node,
            ServerStatusMessage,
            names.common("server_status"),
            self._on_server,
            qos.ROSTER,
            refused=self._on_unreadable_server,
        )

    @property
    def running(self) -> bool:
        """The control thread lives."""
        return self._thread.is_alive()

    def begin(self) -> None:
        """Starts the control thread, and says that the robot is here."""
        self._thread.start()
        self.tell()

    def stop(self) -> None:
        """Ends what the robot does, and lets go of the body; may be called again."""
        self.controller.post(StopControl())
        if self._thread.ident is not None:
            self._thread.join()

    def leave(self) -> None:
        """Stops and says goodbye; the robot's name is free at once."""
        self.stop()
        self.tasks.close()
        message = status_message(self._who, self.controller.report)
        message.state = RobotState.LEAVING
        self._status.publish(message)
        self._status.wait_for_all_acked(Duration(seconds=1))

    def tell(self) -> None:
        """Publishes the robot's status."""
        self.changed(self.controller.report)

    def _control(self) -> None:
        try:
            self.controller.run()
        except BaseException:
            self.failed = True
            raise

    # Called by the controller, in the control thread.

    def send(self, request: Request) -> None:
        observation, earlier = request.observation, request.earlier
        observed_ns = time.monotonic_ns() - request.observed_ago_ns
        self._cameras.show(observation, observed_ns, request.id.task)
        if not self._values["request_images"]:
            observation = Observation(observation.state)
            earlier = tuple(Observation(seen.state) for seen in earlier)
        doing = request.execution
        if doing.surprised and not request.id.attempt:
            self._node.get_logger().info(
                f"asks early for round {request.id.round} of task {request.id.task}: "
                f"{doing.surprise_joint} does not move as its actions say "
                f"(surprise {doing.surprise:.1f})"
            )
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

    def acting(self, action: np.ndarray, state: Callable[[], np.ndarray]) -> None:
        if self._due("policy_state_every", self._states, self._periods + 1):
            self._acted = self._tick(state(), action)

    def period(self, state: Callable[[], np.ndarray]) -> None:
        self._periods += 1
        if self.pipeline is not None:
            self.pipeline.period()
        if self._disturbances is not None:
            self._disturbances.period()
        report = self.controller.report
        if report.task is not None and report.instruction:  # else there is nothing to judge by
            self._cameras.look(self._body.observe, report.task.id)
        if self._due("policy_state_every", self._states, self._periods):
            told = self._acted or self._tick(state())
            self._states.publish(policy_state_message(self._who, report, told))
        self._acted = None
        self._publish_joints()

    def unready(self) -> None:
        self._periods += 1
        self._acted = None
        self._publish_joints()

    def _publish_joints(self) -> None:
        if self._joints is None or not self._due("joint_states_every", self._joints, self._periods):
            return
        body = cast(Jointed, self._body)
        positions = body.joint_positions()
        if positions is not None:
            now = self._node.get_clock().now().to_msg()
            self._joints.publish(joint_state_message(body.joint_names, positions, now))

    def _tick(self, state: np.ndarray, action: np.ndarray | None = None) -> ControlTick:
        return ControlTick(self._node.get_clock().now().to_msg(), state.copy(), action)

    def _due(self, every: str, publisher: Publisher, number: int) -> bool:
        """In the period of this number, and somebody subscribes. every: the parameter with its
        periods."""
        periods = self._values[every]
        return periods and number % periods == 0 and publisher.get_subscription_count() > 0

    # Callbacks of the executor thread.

    def _on_chunk(self, message: ActionChunk) -> None:
        now_ns = time.monotonic_ns()
        try:
            self.controller.post(Arrived(answer_of(message), now_ns))
        except WireError as error:
            self._on_unreadable(error)

    def _on_unreadable(self, error: WireError, raw: bytes = b"") -> None:
        self._node.get_logger().warning(f"dropped a chunk: {error}", throttle_duration_sec=5.0)
        self.controller.post(Malformed())

    def _on_server(self, message: ServerStatusMessage) -> None:
        now_ns = time.monotonic_ns()
        try:
            self.controller.post(ServerHeard(server_from(message), now_ns))
        except WireError as error:
            self._on_unreadable_server(error)

    def _on_unreadable_server(self, error: WireError, raw: bytes = b"") -> None:
        self._node.get_logger().warning(f"ignored {error}", throttle_duration_sec=5.0)

    def _on_matched(self, info: QoSPublisherMatchedInfo) -> None:
        if info.current_count_change > 0:
            self.controller.post(ServerFound())

    def _on_info(self) -> None:
        rate_hz = self._who.spec.control_rate_hz
        self._info.publish(execution_message(self.controller.report.execution, rate_hz))

    def set_parameters(self, values: Mapping[str, Any], changed: Set[str]) -> None:
        """Raises ConfigError for what does not fit the robot, or a task that runs."""
        if any(name.startswith("guard.") for name in changed):
            limits = guard_limits(values, self._body)
            self._guard.check_limits(limits)
            if self.tasks.accepted:
                require_tighter(self._limits, limits)
            self._limits = limits
            self.controller.post(LimitsChanged(limits))
        if "execution_info_rate_hz" in changed:
            set_rate(self._info_timer, values["execution_info_rate_hz"])
        self._cameras.set_rate(values["camera_rate_hz"])
