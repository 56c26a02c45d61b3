"""A robot node under a lifecycle manager: without a body, with one, and taking goals."""

import signal

import pytest
from action_msgs.msg import GoalStatus
from kairos_ros.action import ExecuteTask
from kairos_ros.msg import RobotStatus
from lifecycle_msgs.msg import State, Transition
from managed import Managed
from wire import PATIENCE_S, done, in_executor, meet, until

from kairos_ros.bringup import plan as bringup
from kairos_ros.bringup.process_spec import ProcessSpec

POLICY = "emulated:latency_ms=5,chunk=20,state=3,dim=1"
PENDULUM = ["env_id=Pendulum-v1"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def server(start_for_module):
    return start_for_module(bringup.serving(policy=POLICY, horizon="static:10"))


class Arm(Managed):
    """A robot node and what it says."""

    def __init__(self, wire, name: str) -> None:
        super().__init__(wire, f"/{name}/robot")
        self._wire, self._name = wire, name
        self.client = wire.action_client(f"/{name}/execute_task")

    @property
    def statuses(self) -> list[RobotStatus]:
        return [one for one in self._wire.statuses if one.robot == self._name]

    @property
    def health(self) -> str:
        return getattr(self._wire.reports.get(f"kairos: {self._name}"), "message", "")

    def begin(self, **goal):
        """The future of its result."""
        executor = self._wire.executor
        meet(self.client, executor)
        task = ExecuteTask.Goal(instruction="swing", **goal)
        handle = done(in_executor(executor, lambda: self.client.send_goal_async(task)))
        return in_executor(executor, handle.get_result_async)

    def moves(self, actions: int) -> bool:
        """Its newest status says so many actions of the task at least."""
        return self.statuses[-1].actions_executed >= actions


def robot(name: str, **parameters):
    settings = {"adapter_options": PENDULUM, "autostart": False} | parameters
    return ProcessSpec("robot_node", "robot", name, settings)


def test_a_robot_has_a_body_while_it_is_configured_and_takes_goals_while_it_is_active(start, wire):
    node = start(robot("arm_1"))
    arm = Arm(wire, "arm_1")
    sessions = []
    for _ in range(2):
        assert arm.state == State.PRIMARY_STATE_UNCONFIGURED
        until(lambda: arm.health == "unconfigured: it has no body")
        before = len(arm.statuses)
        assert arm.change(Transition.TRANSITION_CONFIGURE)
        until(lambda before=before: len(arm.statuses) > before + 2)
        assert not any(one.takes_goals_s for one in arm.statuses[before:])
        until(lambda: arm.health == "inactive: it takes no goals")
        assert not arm.client.server_is_ready()

        assert arm.change(Transition.TRANSITION_ACTIVATE)
        result = arm.begin(max_actions=30)
        assert done(result).result.outcome == "max_actions"

        result = arm.begin(max_actions=10_000)
        until(lambda: arm.moves(60))
        assert arm.change(Transition.TRANSITION_DEACTIVATE)
        ended = done(result)
        assert (ended.status, ended.result.outcome) == (GoalStatus.STATUS_ABORTED, "canceled")
        until(lambda: not arm.client.server_is_ready())
        until(lambda: arm.statuses[-1].state == RobotStatus.IDLE)
        executed, heard = arm.statuses[-1].actions_executed, len(arm.statuses)
        until(lambda heard=heard: len(arm.statuses) > heard + 2, what="for further statuses")
        assert {one.actions_executed for one in arm.statuses[heard:]} == {executed}
        assert arm.statuses[-1].state == RobotStatus.IDLE

        assert arm.change(Transition.TRANSITION_CLEANUP)
        until(lambda: arm.statuses[-1].state == RobotStatus.LEAVING)
        sessions.append(arm.statuses[-1].session)
    assert sessions[0] != sessions[1]
    assert node.stop() == 0


def test_a_body_that_is_not_there_can_be_plugged_in_later(start, wire):
    node = start(robot("arm_2", adapter_options=["env_id=None-v0"]))
    arm = Arm(wire, "arm_2")
    assert not arm.change(Transition.TRANSITION_CONFIGURE)
    assert arm.state == State.PRIMARY_STATE_UNCONFIGURED
    assert "None-v0" in node.output()
    assert not arm.set("adapter_options", PENDULUM)
    assert arm.change(Transition.TRANSITION_CONFIGURE)
    assert "cleanup" in arm.set("adapter_options", ["env_id=None-v0"])
    assert arm.change(Transition.TRANSITION_ACTIVATE)
    result = arm.begin(max_actions=20)
    assert done(result).result.outcome == "max_actions"
    assert node.stop(signal.SIGINT) == 0


def test_a_manager_that_shuts_a_robot_down_in_a_task_ends_both(start, wire):
    node = start(robot("arm_3", autostart=True))
    arm = Arm(wire, "arm_3")
    result = arm.begin(max_actions=10_000)
    until(lambda: arm.statuses and arm.moves(30))
    assert arm.change(Transition.TRANSITION_ACTIVE_SHUTDOWN)
    assert done(result).result.outcome == "canceled"
    assert node.process.wait(PATIENCE_S) == 0
    until(lambda: arm.statuses[-1].state == RobotStatus.LEAVING)
    wire.until_left("/arm_3/robot")


def test_a_bug_in_a_transition_ends_the_node_and_is_told(start_node, tmp_path):
    bug = "def Broken(control_rate_hz):\n    raise LookupError('a bug')\n"
    (tmp_path / "broken.py").write_text(bug)
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    named = "[kairos_ros.robot_adapters]\nbroken=broken:Broken\n"
    (info / "entry_points.txt").write_text(named)
    options = ("-r", "__ns:=/arm_4", "-p", "adapter:=broken")
    node = start_node("robot_node", *options, env={"PYTHONPATH": str(tmp_path)})
    assert node.process.wait(PATIENCE_S) == 1
    assert "LookupError: a bug" in node.output()
