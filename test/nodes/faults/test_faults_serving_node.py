"""A serving node that is switched off, killed and started again, with real arms in the middle of a
task: they hold, and carry on with the same task."""

import os
import shutil
import signal
from functools import partial

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from kairos_ros.msg import ActionChunk, RobotStatus
from lifecycle_msgs.msg import Transition
from wire import Operator, Wire, WireRobot, until

from kairos_ros.bringup.plan import robot, serving, share
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.core.errors import RefusalCode
from kairos_ros.host.child_processes import children

REQUESTS = "kairos serving: requests"
EDGE = "kairos serving: edge"
REACH = "move the gripper to the target"
ACTIONS = 90
DRAWER = {"instruction": "open", "scene": "drawer-open-v3", "seed": 3, "max_actions": ACTIONS}


def pendulum(name: str) -> ProcessSpec:
    """A robot whose task never succeeds, so that it ends when its actions are used up."""
    body = ["env_id=Pendulum-v1"]
    return ProcessSpec("robot_node", "robot", name, {"adapter_options": body})


def stuck(wire: Wire) -> str:
    """What /diagnostics says of an engine that ends again and again; empty if none does."""
    status = wire.reports[EDGE]
    in_a_row = "in a row ended without a batch" in status.message
    return status.message if in_a_row and status.level == DiagnosticStatus.ERROR else ""


def state_of(wire: Wire, name: str) -> int:
    return wire.status_of(name).state


def warned_of_holding(wire: Wire, name: str) -> bool:
    report = wire.reports[f"kairos: {name}"]
    return report.level != DiagnosticStatus.OK and "holding" in report.message


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
    start, wire
):
    parameters = {
        "policy": "emulated:latency_ms=20,chunk=50,state=39,dim=4",
        "horizon": "static:10",
    }
    server = start(serving(**parameters))
    arms = {name: start(robot(name, control_rate_hz=6.0)) for name in ("left", "right")}
    operators = {name: Operator(wire, name) for name in arms}
    first = wire.serving_since()
    goals = {name: operator.give(**DRAWER) for name, operator in operators.items()}
    sessions = {name: wire.status_of(name).session for name in arms}
    for name in arms:
        until(lambda name=name: wire.status_of(name).actions_executed >= 10)

    server.stop(signal.SIGKILL)
    seen = len(wire.statuses)
    for name in arms:
        until(lambda name=name: held_since(wire, name, seen), what=f"for {name} to hold")
        until(lambda name=name: warned_of_holding(wire, name), what="for the warning")
    start(serving(**parameters))
    wire.serving_since(first)

    for name, operator in operators.items():
        result = operator.result(goals[name])
        assert (result.outcome, result.actions) == ("max_actions", ACTIONS)
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
    goal = operator.give(instruction="swing", max_actions=360)
    until(lambda: wire.status_of("bob").actions_executed >= 10)

    before = wire.counter("refused_not_active")
    assert wire.transition(Transition.TRANSITION_DEACTIVATE)
    answer = probe.ask(2)
    assert (answer.kind, answer.refusal) == (ActionChunk.REFUSED, RefusalCode.NOT_ACTIVE)
    assert answer.retry_after_s > 0
    until(lambda: wire.counter("refused_not_active") > before)
    until(lambda: state_of(wire, "bob") == RobotStatus.HOLDING, what="for the arm to hold")
    refused = wire.counter("refused_not_active")
    until(lambda: wire.counter("refused_not_active") > refused, what="for it to be refused")
    until(lambda: int(wire.diagnostic(REQUESTS, "refused_not_active") or 0) > before)
    assert wire.transition(Transition.TRANSITION_ACTIVATE)
    assert probe.ask(2, attempt=1).kind == ActionChunk.ACTIONS

    result = operator.result(goal)
    assert (result.outcome, result.actions) == ("max_actions", 360)
    assert result.refusals >= 1
    assert arm.process.poll() is None
    operator.close()


def test_an_engine_that_cannot_come_up_again_is_an_error_with_the_next_try_until_it_does(
    start, wire, policy, tmp_path
):
    folder = tmp_path / "policy"
    shutil.copytree(policy, folder)
    before = wire.fleet[-1].server if wire.fleet else ""
    server = start(serving(policy=str(folder), horizon="static:10"))
    probe = WireRobot(wire, "patient", state=[0.0] * 39)
    wire.serving_since(before)
    probe.request = partial(probe.request, instruction=REACH)
    probe.join()
    assert probe.ask(2).kind == ActionChunk.ACTIONS

    away = folder.rename(tmp_path / "away")
    (worker,) = children(server.process.pid)
    os.kill(worker, signal.SIGKILL)
    said = until(lambda: stuck(wire), what="for the error")
    assert "there is no policy folder" in said
    assert "another starts in " in said
    until(lambda: "there is no policy folder" in wire.fleet[-1].engines[0].last_error)
    answer = probe.ask(3, deadline_s=0.5)
    assert answer.refusal == RefusalCode.ENGINE_DOWN
    assert "there is no policy folder" in answer.reason
    assert answer.retry_after_s > 0
    assert stuck(wire), "the error was withdrawn"

    away.rename(folder)
    until(lambda: wire.reports[EDGE].level == DiagnosticStatus.OK, 120, "for the engine")
    assert probe.ask(3, attempt=1).kind == ActionChunk.ACTIONS
    probe.leave()
    assert server.stop() == 0


def test_a_crash_in_native_code_and_sigusr1_leave_stacks_in_the_log(start, wire):
    emulated = serving(policy="emulated:latency_ms=20,chunk=50,state=39,dim=4")
    server = start(emulated, env={"PYTHONFAULTHANDLER": ""})
    until(lambda: "robots are served" in server.output(), what="for the node to serve")
    server.send(signal.SIGUSR1)
    outermost = '/serving_node", line'
    until(lambda: outermost in server.output(), what="for the stacks of a node that runs")
    [worker] = children(server.process.pid)
    os.kill(worker, signal.SIGSEGV)
    until(lambda: "Extension modules: " in server.output(), what="for the end of its stack")
    server.send(signal.SIGSEGV)
    assert server.process.wait(60.0) == -signal.SIGSEGV
    assert server.output().count("Fatal Python error: ") == 2
    assert "work_loop.py" in server.output()
    assert "nodes/serving/node.py" in server.output()
