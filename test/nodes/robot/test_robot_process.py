"""A robot node as a process: killed, stopped, ended by a bug, or wrongly configured."""

import signal

import pytest
from action_msgs.msg import GoalStatus
from kairos_ros.msg import RobotStatus
from robot_peer import PATIENT, chunk_for
from wire import PATIENCE_S, done, until

pytestmark = pytest.mark.filterwarnings("ignore:Constant:UserWarning")  # of the scripted expert


def test_a_killed_robot_comes_back_with_a_new_session_and_its_old_chunks_are_dropped(
    start_robot, peer
):
    robot = start_robot()
    peer.give()
    old = until(lambda: peer.requests)[0]
    robot.stop(signal.SIGKILL)

    start_robot(*PATIENT)
    until(lambda: peer.statuses[-1].session != old.session)
    peer.answer = lambda request: [chunk_for(old), chunk_for(request)]
    result = peer.result(peer.give()).result
    assert result.success
    asked = lambda: [r for r in peer.requests if r.session != old.session]  # noqa: E731
    late = (0, 1)  # the good one of the last round, where the task ended before it came
    until(lambda: peer.statuses[-1].chunks_dropped - len(asked()) in late)
    assert len(asked()) > 1


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_robot_that_is_stopped_says_goodbye_and_exits_cleanly(start_robot, peer, sig):
    robot = start_robot()
    handle = peer.give()
    ending = peer.within(handle.get_result_async)
    until(lambda: peer.requests)
    robot.send(sig)
    robot.send(sig)  # an impatient user
    assert robot.stop(sig) == 0
    assert done(ending).result.outcome == "failed: the robot node was stopped"
    until(lambda: peer.statuses[-1].state == RobotStatus.LEAVING)
    assert "Traceback" not in robot.output()


BROKEN_BODY = """
from kairos_ros.core.errors import KairosError
from kairos_ros.robot.adapters.sim.sim import SimAdapter

class Broken(SimAdapter):
    def __init__(self, control_rate_hz):
        super().__init__(control_rate_hz=control_rate_hz)
        self.acts = 0

    def act(self, action):
        self.acts += 1
        if self.acts == 5:
            raise KairosError("the motor of joint 2 is too hot")
        if self.acts == 30:
            raise RuntimeError("a bug")
        super().act(action)
"""


@pytest.fixture
def start_with_body(start_node, peer, tmp_path):
    def start(code):
        """With the body `Broken` of an installed package."""
        (tmp_path / "broken.py").write_text(code)
        info = tmp_path / "broken-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
        named = "[kairos_ros.robot_adapters]\nbroken=broken:Broken\n"
        (info / "entry_points.txt").write_text(named)
        settings = ("-r", f"__ns:=/{peer.robot}", "-p", "adapter:=broken")
        return start_node("robot_node", *settings, env={"PYTHONPATH": str(tmp_path)})

    return start


def test_a_body_that_fails_ends_its_task_and_one_with_a_bug_ends_the_node(start_with_body, peer):
    robot = start_with_body(BROKEN_BODY)
    peer.answer = lambda request: [chunk_for(request)]

    result = peer.result(peer.give()).result
    assert result.outcome == "failed: the motor of joint 2 is too hot"
    until(lambda: any("joint 2" in status.message for status in peer.diagnostics))

    peer.give()
    assert robot.process.wait(PATIENCE_S) == 1
    assert "a bug" in robot.output()
    until(lambda: peer.statuses[-1].state == RobotStatus.LEAVING)


BROKEN_BEGINNING = """
from kairos_ros.nodes.robot import tasks
from kairos_ros.robot.adapters.sim.sim import SimAdapter

class Broken(SimAdapter):
    def __init__(self, control_rate_hz):
        super().__init__(control_rate_hz=control_rate_hz)
        told = tasks.started_message

        def fails_once(*what):
            tasks.started_message = told
            raise OverflowError("a bug")

        tasks.started_message = fails_once
"""


def test_a_goal_that_a_bug_ends_does_not_stand_in_the_way_of_the_next_one(start_with_body, peer):
    start_with_body(BROKEN_BEGINNING)
    peer.answer = lambda request: [chunk_for(request)]
    assert peer.result(peer.give()).status == GoalStatus.STATUS_ABORTED
    assert peer.result(peer.give()).result.success


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("adapter:=teleport", "there are sim"),
        ("adapter_options:=['speed=3']", "unexpected keyword argument 'speed'"),
        ("guard.minimum:=[0.0, 1.0]", "the robot has 4 action dimensions"),
        ("control_rate_hz:=0.1", "goes from 1.0 to 1000.0"),
        ("guard.minimun:=[0.0]", "did you mean 'guard.minimum'"),
    ],
)
def test_a_wrong_configuration_ends_the_start_with_one_line(start_robot, parameter, said):
    robot = start_robot(parameter)
    assert robot.process.wait(PATIENCE_S) == 1
    assert said in robot.output()
    assert "Traceback" not in robot.output()


def test_a_robot_whose_namespace_is_no_robot_name_does_not_start(start_node):
    for remap in ([], ["-r", "__ns:=/kairos"]):
        robot = start_node("robot_node", *remap)
        assert robot.process.wait(PATIENCE_S) == 1
        assert "named by its namespace" in robot.output()
