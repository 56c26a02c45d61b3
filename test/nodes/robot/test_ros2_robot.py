"""A robot node with adapter `ros2`, its simulated driver and a serving node as real processes."""

import re
import signal
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from kairos_ros.msg import PolicyState
from picture_probe import Rounds, check_history
from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory
from wire import Operator, answered, in_executor, until

from kairos_ros.bringup.arms import arm_plan
from kairos_ros.host.share import share
from kairos_ros.lab.demos.arm_demo import do_task, finding
from kairos_ros.lab.demos.arm_figure import draw_task
from kairos_ros.lab.demos.arm_recording import ArmRecorder
from kairos_ros.lab.testbed.live import LiveFleet
from kairos_ros.lab.testbed.processes import wait_until
from kairos_ros.lab.testbed.testbed_client import TestbedClient
from kairos_ros.nodes import qos
from kairos_ros.robot.adapters.contract.contract_file import contract_path, read_contract
from kairos_ros.robot.description.urdf import read_urdf
from kairos_ros.telemetry.fleet_view import RobotView

ROBOT, DRIVER = "so101_1", "so101"
THINKS_NOTHING = "emulated:state=9,dim=6,chunk=30,steps=4,observations=2"
DIAGNOSTIC = f"kairos: {ROBOT}"


class Cell:
    """The processes of one arm's plan, and what its driver is told and tells."""

    def __init__(self, wire, start, contract: Path) -> None:
        self.wire, self.start = wire, start
        given = {"policy": THINKS_NOTHING, "horizon": "static:15", "contract": str(contract)}
        self.plan = arm_plan("so101", given)
        self.trajectories: list[JointTrajectory] = []
        self.published_ns: list[int] = []  # when each trajectory was, on the system's clock
        self.states: list[JointState] = []
        listen = wire.node.create_subscription
        topic = f"/{DRIVER}/joint_trajectory_controller/joint_trajectory"
        listen(JointTrajectory, topic, self._commanded, qos.EVENTS)
        listen(JointState, f"/{DRIVER}/joint_states", self.states.append, qos.TELEMETRY)
        self._silence = wire.node.create_client(SetBool, f"/{DRIVER}/fault/silent")
        self._reject = wire.node.create_client(SetBool, f"/{DRIVER}/fault/reject")
        self.policy_states: list[PolicyState] = []
        listen(PolicyState, f"/{ROBOT}/policy_state", self.policy_states.append, qos.EVENTS)
        self.rounds = Rounds(wire.node, [ROBOT])
        self.nodes = {spec.name: start(spec) for spec in self.plan}
        wire.serving_since()
        self.operator = Operator(wire, ROBOT)

    def _commanded(self, trajectory: JointTrajectory, info) -> None:
        self.published_ns.append(info["source_timestamp"])
        self.trajectories.append(trajectory)

    def task(self, **goal):
        """Gives a task; the future of its result."""
        return self.operator.give(instruction="touch the ball", **goal)

    def silence(self, on: bool) -> None:
        answered(self._silence, SetBool.Request(data=on))

    def reject(self, on: bool) -> None:
        answered(self._reject, SetBool.Request(data=on))

    def moves(self, since: int) -> bool:
        """Whether something was commanded after the first `since` trajectories."""
        return len(self.trajectories) > since

    def nothing_moves(self) -> None:
        """Nothing is published for half a second; what was published before may still arrive."""
        since_ns = time.time_ns()
        time.sleep(0.5)
        assert not any(at_ns > since_ns for at_ns in self.published_ns)


@pytest.fixture(scope="module")
def cell(wire, start_for_module, tmp_path_factory):
    """By the shipped contract, with a driver that may get no processor for a while."""
    text = contract_path("so101").read_text()
    patient = text.replace("stale_after_s: 0.25", "stale_after_s: 4.0")
    assert patient != text
    contract = tmp_path_factory.mktemp("contract") / "so101.yaml"
    contract.write_text(patient)
    cell = Cell(wire, start_for_module, contract)
    yield cell
    cell.operator.close()


def test_joint_states_are_the_drivers_own_under_the_urdfs_names_before_any_task(cell):
    heard = []
    ours = cell.wire.node.create_subscription(
        JointState, f"/{ROBOT}/joint_states", heard.append, qos.TELEMETRY
    )
    until(lambda: len(heard) > 30 and cell.states, what="for joint states")
    told, driver = heard[-1], cell.states[-1]
    urdf = read_urdf((share() / "models" / "arms" / "so101.urdf").read_text())
    assert list(told.name) == [joint.name for joint in urdf.joints.values() if joint.moves]
    at = dict(zip(driver.name, driver.position, strict=True))
    assert [at[name] for name in told.name] == pytest.approx(list(told.position), abs=1e-3)
    assert max(map(abs, told.position)) > 0.5, "an arm at 0 has no units"
    seconds = [one.header.stamp.sec + one.header.stamp.nanosec / 1e9 for one in heard]
    assert 1 / 60 < median(b - a for a, b in pairwise(seconds)) < 1 / 15
    in_executor(cell.wire.executor, lambda: cell.wire.node.destroy_subscription(ours))


def test_the_policys_state_has_its_own_names_beside_them(cell):
    cell.operator.result(cell.task(max_actions=20))
    told = until(lambda: cell.policy_states, what="for the policy's state")[-1]
    assert list(told.names) == list(read_contract(contract_path("so101")).state_features)
    assert len(told.values) == 9


def test_a_task_is_served_end_to_end(cell):
    until(lambda: cell.states, what="for the driver")
    sent = len(cell.trajectories)
    result = cell.operator.result(cell.task(max_actions=60))
    assert result.actions == 60
    assert len(result.round_executed) >= 4
    until(lambda: len(cell.trajectories) >= sent + 30, what="for what was commanded")

    def from_command() -> float:
        """Largest distance of a joint from where the last trajectory ends (rad)."""
        at, to = cell.states[-1].position, cell.trajectories[-1].points[-1].positions
        return max(abs(a - b) for a, b in zip(at, to, strict=True))

    until(lambda: from_command() < 0.02, what="for the arm to be where it was commanded to be")
    assert max(map(abs, cell.states[0].position)) > 0.5, "it began elsewhere"
    assert max(map(abs, cell.trajectories[-1].points[-1].positions[2:])) < 0.2
    told = cell.trajectories[-1]
    assert list(told.joint_names) == list(cell.states[-1].name)
    assert all(-2.75 <= at <= 2.85 for at in told.points[0].positions)
    check_history(cell.rounds, result.rounds)


def test_the_contract_fits_the_running_driver_and_who_commands_it_is_told(cell, start_for_module):
    kairos = Path(sys.prefix, "bin", "kairos")
    checked = start_for_module.__self__.run(
        [kairos, "robot", "check", "so101", "--live", "--within", "40"]
    )
    assert checked.process.wait(120.0) == 0, checked.output()
    assert "the drivers fit" in checked.output()
    assert re.search(f"note: (/{ROBOT}/driver_link_|a node whose name)", checked.output())


def test_a_second_robot_node_is_refused_and_the_first_goes_on(cell):
    robot = next(spec for spec in cell.plan if spec.name == "robot")
    options = [*robot.parameters["adapter_options"], "start_within_s=15.0"]
    second = cell.start(
        replace(
            robot, namespace="so101_2", parameters={**robot.parameters, "adapter_options": options}
        )
    )
    told = f"commanded by another: (/{ROBOT}/driver_link_|a node whose name)"
    try:
        until(lambda: re.search(told, second.output()), what="for the second one to see the first")
    except AssertionError:
        second.stop(signal.SIGABRT)  # one that hangs says where
        print(second.output())
        raise
    second.stop()
    assert cell.operator.result(cell.task(max_actions=10)).actions == 10


def test_an_idle_arm_whose_driver_falls_silent_is_a_warning_until_the_driver_is_back(cell):
    assert cell.operator.result(cell.task(max_actions=10)).actions == 10
    logged = cell.wire.rosout()
    level = lambda: cell.wire.reports[DIAGNOSTIC].level  # noqa: E731
    until(lambda: level() == DiagnosticStatus.OK, what="for the arm to be well")
    before = set(cell.wire.said)
    why = "idle, and a task would fail now: /so101/joint_states has said nothing new for"
    warned = lambda: cell.wire.reports[DIAGNOSTIC].message.startswith(why)  # noqa: E731
    cell.silence(True)
    try:
        until(warned, what="for the warning")
        assert level() == DiagnosticStatus.WARN
    finally:
        cell.silence(False)
    until(lambda: level() == DiagnosticStatus.OK, what="for the arm to recover by itself")
    assert int(cell.wire.diagnostic(DIAGNOSTIC, "body tolerated, stale joint states")) >= 1
    until(lambda: {lv for lv, text in [*logged] if text.startswith(why)} == {"WARN"})
    until(lambda: ("INFO", "the body can be used again") in logged)
    news = {(name, level) for name, level, _ in cell.wire.said - before}
    assert (DIAGNOSTIC, DiagnosticStatus.ERROR) not in news
    assert cell.operator.result(cell.task(max_actions=10)).actions == 10


def test_a_driver_that_falls_silent_fails_the_task_and_moves_nothing_when_it_is_back(cell):
    logged = cell.wire.rosout()
    sent = len(cell.trajectories)
    running = cell.task(max_duration_s=60.0)
    until(lambda: cell.moves(sent), what="for the arm to move")
    cell.silence(True)
    result = cell.operator.result(running)
    assert not result.success
    assert "/so101/joint_states has said nothing new for" in result.outcome
    errors = lambda: " ".join(text for level, text in logged if level == "ERROR")  # noqa: E731
    until(lambda: result.outcome in errors(), what="for the reason in /rosout")
    refused = cell.operator.result(cell.task(max_actions=5))
    assert "has said nothing new" in refused.outcome
    counted = "body failed, stale joint states"
    until(lambda: cell.wire.diagnostic(DIAGNOSTIC, counted), what="for /diagnostics")
    assert cell.wire.reports[DIAGNOSTIC].message.startswith("the body failed: ")
    cell.silence(False)
    cell.nothing_moves()
    assert cell.operator.result(cell.task(max_actions=10)).actions == 10


def test_a_controller_that_rejects_what_it_is_told_fails_the_task(cell):
    cell.reject(True)
    result = cell.operator.result(cell.task(max_duration_s=60.0))
    assert "its controller rejects what it is told" in result.outcome
    until(lambda: cell.wire.diagnostic(DIAGNOSTIC, "body failed, not following"))
    cell.reject(False)
    cell.nothing_moves()
    assert cell.operator.result(cell.task(max_actions=10)).actions == 10


def test_a_driver_that_is_killed_and_restarted_moves_nothing_before_a_new_task(cell):
    sent = len(cell.trajectories)
    running = cell.task(max_duration_s=60.0)
    until(lambda: cell.moves(sent), what="for the arm to move")
    cell.nodes["driver"].stop(signal.SIGKILL)
    assert cell.operator.result(running).outcome.startswith("failed: ")
    cell.states.clear()
    cell.nodes["driver"] = cell.start(next(s for s in cell.plan if s.name == "driver"))
    until(lambda: cell.states, what="for the driver to be back")
    cell.nothing_moves()
    assert cell.operator.result(cell.task(max_actions=10)).actions == 10


def test_the_demo_records_a_task_and_draws_joints_against_chunks(cell, tmp_path):
    with TestbedClient(LiveFleet({ROBOT: RobotView(ROBOT)})) as client:
        recorder = ArmRecorder(client, ROBOT, DRIVER)

        def wait(true, what, within_s):
            wait_until(true, within_s, what, lambda _: client.spin(0.1))

        wait(lambda: client.ready() and recorder.recording.positions, "ready", 60.0)
        for number in (1, 2, 3):  # DDS may find the recorder late: then the first one lacks chunks
            told = do_task(recorder, number, 60.0, wait, max_actions=40)
            seen = recorder.recording
            if seen.chunks:
                break
    assert told.actions == 40
    assert len(told.round_executed) >= 2
    assert seen.chunks
    assert all(0 <= chunk.at_s < 60 and chunk.actions.shape == (15, 6) for chunk in seen.chunks)
    assert len({positions["shoulder_pan"] for _, positions in seen.positions}) > 5
    assert finding("so101", [told]).startswith("so101: 0 of 1 tasks succeeded, ")
    draw_task(tmp_path / "arm.png", "one task", read_contract(contract_path("so101")), seen)
    assert (tmp_path / "arm.png").read_bytes().startswith(b"\x89PNG")
