"""The robot node: one robot per process, named by its namespace. Thin over `kairos_ros.robot`.

Two threads: the control thread owns the body and the loop (`robot.control`), the main thread serves
ROS and waits for the signal to stop.
"""

import time
import traceback
from collections.abc import Mapping, Set
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus

from kairos_ros.core.errors import KairosError
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.wire_check import check_text
from kairos_ros.nodes.diagnostics import DiagnosticsPublisher
from kairos_ros.nodes.fleet_namespace import robot_in_fleet
from kairos_ros.nodes.managed import ManagedNode
from kairos_ros.nodes.process import begin, give_up, log_by
from kairos_ros.nodes.robot.diagnostics import robot_diagnostic
from kairos_ros.nodes.robot.parameters import ROBOT_PARAMETERS
from kairos_ros.nodes.robot.session import RobotSession, open_body
from kairos_ros.nodes.robot.topic_publishers import strange_publishers
from kairos_ros.nodes.timers import every
from kairos_ros.robot.control_report import Report

HEARTBEAT_PERIOD_S = 1.0
LAST_RESULT_S = 1.0
LAST_CALLBACKS = 10


class RobotNode(ManagedNode):
    """Unconfigured it has no body, inactive it has one, active it takes goals.

    Raises ConfigError for anything wrong in the parameters or the namespace.
    """

    def __init__(self) -> None:
        super().__init__("robot", ROBOT_PARAMETERS)
        log_by(self)
        self._names, self._robot = robot_in_fleet(self, self.values["name"])
        self.session: RobotSession | None = None
        """While it is configured."""
        self._diagnostics = DiagnosticsPublisher(self, self._names)
        every(self, HEARTBEAT_PERIOD_S, self._on_heartbeat)
        self.values.on_change(self._on_parameters)

    # Lifecycle

    def set_up(self) -> None:
        """Opens the body and says that the robot is here.

        Raises KairosError. Where the node starts itself, a body that cannot be used ends it.
        """
        self._names, self._robot = robot_in_fleet(self, self.values["name"])
        try:
            body = open_body(self, self._names, self.values)
        except KairosError as error:
            if self.values["autostart"]:
                give_up(self, error)
            raise
        try:
            self.session = RobotSession(self, self._names, self._robot, self.values, body)
        except BaseException:
            body.close()
            raise
        self._diagnosed = Report()
        self._held_since: float | None = None
        self._foreign_publishers: list[str] = []
        self.session.begin()
        self.get_logger().info(
            f"robot {self._robot} is up: adapter={self.values['adapter']} "
            f"rate_hz={self.values['control_rate_hz']:g} session={self.session.id[:8]}"
        )

    def begin_work(self) -> None:
        """Takes goals."""
        assert self.session is not None  # it is configured
        self.session.tasks.open()

    def end_work(self) -> None:
        """Takes no goals, and cancels the one that runs. Raises KairosError if it does not end."""
        if self.session is not None and self.session.running:
            self.session.tasks.rest()

    def take_down(self) -> None:
        """Lets go of the body. Raises KairosError while a client still waits for its result."""
        if self.session is None:
            return
        if self.session.tasks.accepted and not self.finalized:
            raise KairosError("the result of the last task is still on its way; try again")
        self.session.leave()
        self.session = None

    @property
    def failed(self) -> bool:
        """A bug ended the control thread."""
        return self.session is not None and self.session.failed

    # Callbacks

    def _on_heartbeat(self) -> None:
        if self.session is None:
            name = f"kairos: {self._robot}"
            status = DiagnosticStatus(name=name, hardware_id=self._robot)
            status.message = "unconfigured: it has no body"
            self._diagnostics.publish([status])
            return
        self.session.tell()
        report = self.session.controller.report
        if report.misfit and report.misfit != self._diagnosed.misfit:
            self.get_logger().error(f"{report.server} cannot serve this robot: {report.misfit}")
        if report.state is not RobotState.HOLDING:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = time.monotonic()
        held_s = time.monotonic() - self._held_since if self._held_since is not None else 0.0
        pipeline = self.session.pipeline
        if pipeline is not None and report.task is None:
            pipeline.publish()  # what a body that failed no longer gets to tell
        status = robot_diagnostic(
            self._robot,
            report,
            self._diagnosed,
            held_s,
            self.values,
            active=self.active,
            unused=pipeline.dropped if pipeline else {},
            last=pipeline.last if pipeline else None,
            refused=self.session.tasks.refused,
            strange=self._strange(report, self.session.tasks.name_left_to),
        )
        self._diagnosed = report
        self._diagnostics.publish([status])

    def _strange(self, report: Report, name_left_to: str) -> list[str]:
        """Who publishes on this robot's topics and should not; logged when that changes."""
        strange = strange_publishers(self, report.server)
        if name_left_to:
            strange.append(
                f"another node of this name, so that this one takes no goals: {name_left_to}"
            )
        if strange and strange != self._foreign_publishers:
            self.get_logger().error(
                f"other nodes publish as this robot or its server: {'; '.join(strange)}"
            )
        self._foreign_publishers = strange
        return strange

    def _on_parameters(self, values: Mapping[str, Any], changed: Set[str]) -> None:
        """Raises ConfigError for what does not fit the robot, or a task that runs."""
        check_text("parameter horizon_policy", values["horizon_policy"])
        if self.session is not None:
            self.session.set_parameters(values, changed)


def main() -> int:
    """Runs the node until SIGINT or SIGTERM. Exit code 0 then, 1 after an error."""
    node, executor, stop = begin("robot_node", RobotNode)
    broken = False
    try:
        while not (stop.is_set() or node.over or node.failed):
            executor.spin_once(timeout_sec=0.1)
    except Exception:
        traceback.print_exc()
        broken = True
    if node.session is not None:
        node.session.stop()
        give_up = time.monotonic() + LAST_RESULT_S
        while node.session.tasks.accepted and time.monotonic() < give_up:
            executor.spin_once(timeout_sec=0.05)
        for _ in range(LAST_CALLBACKS):  # so that a waiting action client has its result
            executor.spin_once(timeout_sec=0.01)
    broken = broken or node.failed
    executor.shutdown()
    node.finalized = True
    node.close()
    rclpy.shutdown()
    return int(broken)
