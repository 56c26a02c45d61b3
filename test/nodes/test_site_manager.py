"""A site's own lifecycle manager: the calls of nav2_lifecycle_manager, in its order."""

import pytest
from kairos_ros.action import ExecuteTask
from lifecycle_msgs.msg import State, Transition
from managed import Managed
from wire import PATIENCE_S, done, in_executor, meet, until

from kairos_ros.bringup import plan as bringup
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.bringup.robot import one_robot

POLICY = "emulated:latency_ms=5,chunk=20,state=3,dim=1"
AFTER = {
    Transition.TRANSITION_CONFIGURE: State.PRIMARY_STATE_INACTIVE,
    Transition.TRANSITION_ACTIVATE: State.PRIMARY_STATE_ACTIVE,
    Transition.TRANSITION_DEACTIVATE: State.PRIMARY_STATE_INACTIVE,
    Transition.TRANSITION_CLEANUP: State.PRIMARY_STATE_UNCONFIGURED,
    Transition.TRANSITION_UNCONFIGURED_SHUTDOWN: State.PRIMARY_STATE_FINALIZED,
}
UP = (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
DOWN = (Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP)

pytestmark = pytest.mark.slow


class Manager:
    """Of nodes in this order. Every step is a transition and the question for the state after it;
    the first one that fails ends them, as with nav2's (navigation2, lifecycle_manager.cpp)."""

    def __init__(self, wire, names: list[str]) -> None:
        self._nodes = {name: Managed(wire, f"/{name}") for name in names}

    def all(self, *transitions: int) -> None:
        for transition in transitions:
            upwards = transition in UP
            for name in self._nodes if upwards else reversed(self._nodes):
                node = self._nodes[name]
                assert node.change(transition), f"{name}: {transition}"
                assert node.state == AFTER[transition], f"{name}: {transition}"


def test_nav2s_manager_starts_pauses_resets_and_shuts_down_a_fleet_also_in_a_task(
    start, wire, tmp_path
):
    arm = one_robot("arm_1", adapter_options="env_id=Pendulum-v1")
    specs = [
        bringup.serving(policy=POLICY, horizon="static:10", autostart=False),
        bringup.vlm("safety", autostart=False),
        bringup.viz(autostart=False),
        bringup.recorder(tmp_path / "bag", autostart=False),
        ProcessSpec("robot_node", "robot", "arm_1", {**arm.parameters, "autostart": False}),
    ]
    nodes = [start(spec) for spec in specs]
    manager = Manager(wire, [f"{spec.namespace}/{spec.name}" for spec in specs])
    client = wire.action_client("/arm_1/execute_task")

    def begin_task():
        meet(client, wire.executor)
        goal = ExecuteTask.Goal(instruction="swing", max_duration_s=600.0)
        handle = done(in_executor(wire.executor, lambda: client.send_goal_async(goal)))
        assert handle.accepted
        until(lambda: wire.status_of("arm_1").actions_executed > 20)
        return in_executor(wire.executor, handle.get_result_async)

    manager.all(*UP)  # startup
    result = begin_task()
    manager.all(DOWN[0])  # pause
    assert done(result).result.outcome == "canceled"
    manager.all(UP[1])  # resume
    result = begin_task()
    manager.all(*DOWN)  # reset
    assert done(result).result.outcome == "canceled"
    manager.all(Transition.TRANSITION_UNCONFIGURED_SHUTDOWN)
    assert [node.process.wait(PATIENCE_S) for node in nodes] == [0] * len(nodes)
