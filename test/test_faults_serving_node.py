"""A serving node that is switched off, killed and started again, with real arms in the middle of a
task: they hold, and carry on with the same task."""

import signal

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from kairos_ros.msg import ActionChunk, RobotStatus
from lifecycle_msgs.msg import Transition
from wire import Operator, Wire, WireRobot, until

from kairos_ros.bringup import NodeSpec, robot, serving, share
from kairos_ros.core.errors import RefusalCode

REQUESTS = "kairos serving: requests"
REACH = {"instruction": "move the gripper to the target", "scene": "reach-v3", "seed": 3}


def pendulum(name: str) -> NodeSpec:
    """A robot whose task never succeeds, so that it ends when its actions are used up."""
    body = ["env_id=Pendulum-v1"]
    return NodeSpec("robot_node", "robot", name, {"adapter_options": body})


def state_of(wire: Wire, name: str) -> int:
    return wire.status_of(name).state


def held_since(wire: Wire, name: str, seen: int) -> bool:
    """Whether the robot has reported holding in any status after the first `seen`."""
    later = [s for s in wire.statuses[seen:] if s.robot == name]
    return any(s.state == RobotStatus.HOLDING for s in later)


@pytest.fixture
def policy():
    folder = share() / "models" / "metaworld_flow"
    if not (folder / "model.safetensors").exists():
        pytest.fail(f"the shipped policy is missing: {folder}")
    return str(folder)


def test_arms_hold_while_their_server_is_dead_and_finish_the_same_task_with_the_next_one(
    start, wire, policy
):
    parameters = {"policy": policy, "horizon": "static:10"}
    server = start(serving(**parameters))
    arms = {name: start(robot(name, control_rate_hz=6.0)) for name in ("left", "right")}
    operators = {name: Operator(wire, name) for name in arms}
    first = wire.serving_since()
    goals = {name: operator.give(**REACH) for name, operator in operators.items()}
    sessions = {name: wire.status_of(name).session for name in arms}
    for name in arms:
        until(lambda name=name: wire.status_of(name).actions_executed >= 10)

    server.stop(signal.SIGKILL)
    seen = len(wire.statuses)
    for name in arms:
        until(lambda name=name: held_since(wire, name, seen), what=f"for {name} to hold")
        until(lambda name=name: wire.reports[f"kairos: {name}"].level != DiagnosticStatus.OK)
        assert "holding" in wire.reports[f"kairos: {name}"].message
    start(serving(**parameters))
    wire.serving_since(first)

    for name, operator in operators.items():
        result = operator.result(goals[name])
        assert result.success, result.outcome
        assert result.stalled_s > 1.0
        assert wire.status_of(name).session == sessions[name]
        assert arms[name].process.poll() is None
        operator.close()
    for node in arms.values():
        assert node.stop() == 0


def test_a_deactivated_server_refuses_by_code_and_robots_carry_on_once_it_is_active_again(
    start, wire
):
    previous = wire.fleet[-1].server if wire.fleet else ""
    start(serving(policy="emulated:latency_ms=5,chunk=20,state=3,dim=1", horizon="static:10"))
    arm = start(pendulum("bob"))
    operator, probe = Operator(wire, "bob"), WireRobot(wire, "probe", state=[0.5, 0.0, 0.0])
    wire.serving_since(previous)
    probe.join()
    goal = operator.give(instruction="swing", max_actions=240)
    until(lambda: wire.status_of("bob").actions_executed >= 10)

    before = wire.counter("refused_not_active")
    assert wire.transition(Transition.TRANSITION_DEACTIVATE)
    answer = probe.ask(2)
    assert (answer.kind, answer.refusal) == (ActionChunk.REFUSED, RefusalCode.NOT_ACTIVE)
    assert answer.retry_after_s > 0
    until(lambda: wire.counter("refused_not_active") > before)
    until(lambda: state_of(wire, "bob") == RobotStatus.HOLDING, what="for the arm to hold")
    until(lambda: int(wire.diagnostic(REQUESTS, "refused_not_active") or 0) > before)
    assert wire.transition(Transition.TRANSITION_ACTIVATE)
    assert probe.ask(2, attempt=1).kind == ActionChunk.ACTIONS

    result = operator.result(goal)
    assert (result.outcome, result.actions) == ("max_actions", 240)
    assert result.refusals >= 1
    assert arm.process.poll() is None
    operator.close()
