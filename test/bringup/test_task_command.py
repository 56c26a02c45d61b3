"""`kairos task send|cancel` as people type it, at a real robot node with a real serving node."""

import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kairos_ros.action import ExecuteTask
from kairos_ros.msg import RobotStatus
from wire import done, in_executor, meet, until

from kairos_ros.bringup import plan as bringup

KAIROS = Path(sys.prefix, "bin", "kairos")
ENDLESS = ("open the drawer", "--scene", "peg-insert-side-v3")
"""The policy looks for a drawer where there is none."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def arm(start_for_module, wire):
    """One demo arm and its server."""
    started = {spec.name: start_for_module(spec) for spec in bringup.plan(1)}
    wire.serving_since()
    wire.status_of("arm_1")
    return started


def typed(*words: str) -> subprocess.CompletedProcess:
    line = [KAIROS, "task", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def state(wire) -> int:
    return wire.status_of("arm_1").state


def test_a_demo_arm_without_a_scene_does_its_instructions_scene():
    told = typed("send", "arm_1", "open the drawer", "--seed", "3")
    assert told.returncode == 0, told
    assert re.search(r"arm_1: succeeded; \d+ actions in \d+ rounds, the last after \d", told.stdout)
    assert "arm_1 moves: round " in told.stdout


def test_an_instruction_of_no_scene_lists_those_there_are():
    told = typed("send", "arm_1", "make coffee")
    assert told.returncode == 1
    assert "'make coffee' is the instruction of none" in told.stdout
    assert "'open the drawer' (drawer-open-v3)" in told.stdout


def test_a_task_that_does_not_succeed_in_time_is_exit_code_1():
    told = typed("send", "arm_1", *ENDLESS, "--max-duration", "1.5", "--horizon", "static:5")
    assert told.returncode == 1
    assert "arm_1: max_duration; " in told.stdout


def test_ctrl_c_cancels_the_task_and_says_how_it_ended(wire):
    line = [KAIROS, "task", "send", "arm_1", *ENDLESS]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as sending:
        until(lambda: "arm_1 moves" in sending.stdout.readline(), what="for the arm to move")
        sending.send_signal(signal.SIGINT)
        assert "arm_1: canceled; " in sending.stdout.read()
    assert sending.returncode == 130
    until(lambda: state(wire) == RobotStatus.IDLE)


def test_a_task_that_somebody_else_gave_is_canceled_and_meanwhile_nobody_else_gets_the_arm(wire):
    client = wire.action_client("/arm_1/execute_task")
    meet(client, wire.executor)
    goal = ExecuteTask.Goal(instruction=ENDLESS[0], scene=ENDLESS[2])
    handle = done(in_executor(wire.executor, lambda: client.send_goal_async(goal)))
    assert handle.accepted
    told = typed("send", "arm_1", "open the drawer")
    assert told.returncode == 2
    assert "it does 'open the drawer'; kairos task cancel arm_1 ends that" in told.stderr
    told = typed("cancel", "/arm_1")
    assert (told.returncode, told.stdout) == (0, "arm_1: canceled 'open the drawer'\n"), told
    assert done(in_executor(wire.executor, handle.get_result_async)).result.outcome == "canceled"
    until(lambda: state(wire) == RobotStatus.IDLE)
    in_executor(wire.executor, client.destroy)


def test_a_robot_without_a_task_has_none_to_cancel():
    told = typed("cancel", "arm_1")
    assert (told.returncode, told.stdout) == (0, "arm_1 does no task\n")


def test_a_robot_that_is_not_there_is_missed_and_the_others_are_named():
    both = (("send", "arm_9", "open the drawer"), ("cancel", "arm_9"))
    with ThreadPoolExecutor() as at_once:  # each waits for the robot
        told = list(at_once.map(lambda words: typed(*words), both))
    for one in told:
        assert one.returncode == 2
        assert "no robot 'arm_9' that takes tasks; robots here: arm_1" in one.stderr
        assert "Traceback" not in one.stderr


def test_an_arm_whose_serving_node_has_died_holds_and_the_reason_is_said(arm):
    """The last test: nobody serves afterwards."""
    line = [KAIROS, "task", "send", "arm_1", *ENDLESS]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as sending:
        until(lambda: "arm_1 moves" in sending.stdout.readline())
        arm["serving"].stop(signal.SIGKILL)
        why = "arm_1 holds, waiting for actions (no serving node is heard)"
        until(lambda: why in sending.stdout.readline(), what="for the reason")
        sending.send_signal(signal.SIGINT)
