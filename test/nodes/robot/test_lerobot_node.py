"""An SO-101 served end to end: the robot node over LeRobot's driver, a serving node, and the cable.

All of it in real processes; what is simulated are the six motors behind the serial port.
"""

import json
import signal
import time

import pytest
from action_msgs.msg import GoalStatus
from diagnostic_msgs.msg import DiagnosticStatus
from picture_probe import Rounds, check_history
from wire import Operator, done, until

from bench.support.simulated_so101 import SimulatedArm
from kairos_ros.bringup.arms import arm_plan

NAME = "desk"
HEALTH = f"kairos: {NAME}"
POLICY = "emulated:latency_ms=20,chunk=30,state=6,dim=6,observations=2"
"""Its second action, the shoulder's lift, counts from 0 up in every chunk: a folded arm rises. Its
third one is the first number of the observation before."""


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    arm = SimulatedArm(tmp_path_factory.mktemp("arm"))
    yield arm
    arm.close()


@pytest.fixture(scope="module")
def node(start_for_module, arm, wire):
    """What so101.launch.py starts for an arm on a serial port; the robot node."""
    more = {"calibration_dir": str(arm.port.parent), "max_blind_s": 10.0, "on_stop": "torque_off"}
    given = {"use_sim": "false", "robot": NAME, "policy": POLICY, "horizon": "static:10"}
    port = {"port": str(arm.port), "id": "so101", "lerobot": json.dumps(more)}
    started = {spec.executable: start_for_module(spec) for spec in arm_plan("so101", given | port)}
    assert set(started) == {"robot_node", "serving_node"}
    wire.serving_since()
    return started["robot_node"]


@pytest.fixture(scope="module")
def rounds(wire):
    return Rounds(wire.node, [NAME])


@pytest.fixture
def operator(node, rounds, wire):
    operator = Operator(wire, NAME)
    yield operator
    operator.close()


def resting(arm):
    """Where the motors are, once they are at their goals."""
    return until(lambda: (at := arm.motors("position")) == arm.motors("goal") and at)


def test_a_task_is_served_and_the_arm_moves(operator, rounds, arm):
    folded = resting(arm)
    goal = done(operator.give(instruction="rise", max_actions=25))
    assert goal.status == GoalStatus.STATUS_SUCCEEDED  # a behaviour tree goes on
    result = goal.result
    assert (result.outcome, result.actions) == ("max_actions", 25)
    assert (result.ended, result.success) == (True, False)
    assert resting(arm)["shoulder_lift"] > folded["shoulder_lift"] + 200
    check_history(rounds, result.rounds)


def test_a_pulled_cable_ends_the_task_and_nothing_moves_before_a_new_one(operator, arm, wire):
    logged = wire.rosout()
    task = operator.give(instruction="rise")
    goal = arm.motors("goal")
    until(lambda: arm.motors("goal") != goal, what="for the arm to move")
    arm.tell("pull")
    result = operator.result(task)
    assert result.outcome.startswith("failed: cable")
    errors = lambda: " ".join(text for level, text in logged if level == "ERROR")  # noqa: E731
    until(lambda: result.outcome in errors(), what="for the reason in /rosout")
    until(lambda: wire.diagnostic(HEALTH, "body failed, cable") == "1", what="for the count")
    assert wire.reports[HEALTH].level == DiagnosticStatus.ERROR
    before = resting(arm)  # the motors had power and went to the last goal they heard

    heard = arm.tell("plug")["packets"]
    beats = len(wire.statuses)
    until(lambda: len(wire.statuses) > beats + 4, what="for some heartbeats")
    assert arm.tell()["packets"] == heard
    assert arm.motors("position") == before

    result = operator.result(operator.give(instruction="rise", max_actions=25))
    assert result.outcome == "max_actions"
    assert resting(arm) != before
    until(lambda: wire.reports[HEALTH].level == DiagnosticStatus.OK, what="for the arm to be well")


def test_a_joint_out_of_its_range_gets_no_task(operator, arm, wire):
    arm.tell("power", "place 3 400")
    result = operator.result(operator.give(instruction="rise"))
    assert "elbow_flex" in result.outcome
    assert result.actions == 0
    until(lambda: wire.diagnostic(HEALTH, "body failed, joint out of limits"), what="for the count")
    arm.tell("place 3 2000")
    result = operator.result(operator.give(instruction="rise", max_actions=5))
    assert result.outcome == "max_actions"


def test_an_arm_that_cannot_be_connected_is_an_error_in_rosout(start, wire):
    logged = wire.rosout()
    given = {"use_sim": "false", "robot": "nowhere", "port": "/dev/nothing", "id": "so101"}
    plan = arm_plan("so101", given | {"policy": POLICY})
    why = "port /dev/nothing cannot be opened"
    for _ in range(5):  # on a busy machine a node may end before DDS has found who listens
        node = start(next(spec for spec in plan if spec.executable == "robot_node"))
        assert node.process.wait(60) == 1
        assert node.output().count(why) == 1
        time.sleep(1.0)
        if heard := [level for level, text in logged if why in text]:
            break
    assert heard == ["ERROR"]


def test_a_node_that_is_stopped_lets_the_arm_go_as_configured(node, arm):
    assert node.stop(signal.SIGINT) == 0
    assert not any(arm.motors("torque").values())
