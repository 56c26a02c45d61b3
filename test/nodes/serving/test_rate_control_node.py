"""Rate control over DDS: a robot node keeps to its period, and one that does not is named."""

import time

import pytest
from kairos_ros.action import ExecuteTask
from kairos_ros.msg import ExecutionInfo, RobotState
from managed import parameters_of
from rclpy.parameter import Parameter
from wire import WireRobot, done, in_executor, meet, until

from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.robot import one_robot

POLICY = "emulated:latency_ms=200,chunk=20,state=3,dim=1"
"""With batches of one: five rounds per second, 4.5 at the target."""
LEAST_PERIOD_S = 0.7 / 2.25
"""Of each of two robots."""

pytestmark = pytest.mark.slow


def seen(wire, robot: str) -> RobotState:
    return next((r for r in wire.fleet[-1].robots if r.robot == robot), RobotState())


def test_an_arm_keeps_to_the_period_that_it_is_told_and_one_that_does_not_is_named(start, wire):
    start(serving(policy=POLICY, horizon="static:4", max_batch=1))
    start(one_robot("arm_1", adapter_options="env_id=Pendulum-v1"))
    wire.serving_since()
    client = wire.action_client("/arm_1/execute_task")
    meet(client, wire.executor)
    goal = ExecuteTask.Goal(instruction="swing up", max_duration_s=60.0)
    handle = done(in_executor(wire.executor, lambda: client.send_goal_async(goal)))
    assert handle.accepted
    bob = WireRobot(wire, "bob", state=[0.0, 0.0, 0.0]).join()
    # the two alone would not fit: each executes a chunk of 4 actions in 0.13 s
    running = ExecutionInfo(started=True, started_ago_s=0.13, control_rate_hz=30.0)

    def bob_asks(first: int, seconds: float) -> int:
        round_, until_s = first, time.monotonic() + seconds
        while time.monotonic() < until_s:
            running.round = round_ - 1
            bob.ask(round_, execution=running)
            round_ += 1
        return round_

    parameters = parameters_of(wire, "/kairos/serving")
    on = [Parameter("rate_control", value=True)]
    assert done(parameters.set_parameters(on)).results[0].successful
    next_round = bob_asks(2, 3.0)
    # each may have half of what the engine can do, which is less on a busy machine
    until(lambda: seen(wire, "arm_1").request_period_s > LEAST_PERIOD_S)
    before, began_s = seen(wire, "arm_1"), time.monotonic()
    next_round = bob_asks(next_round, 4.0)
    after, took_s = seen(wire, "arm_1"), time.monotonic() - began_s
    rounds = after.rounds_served - before.rounds_served
    assert 0 < rounds <= took_s / LEAST_PERIOD_S + 2
    assert not after.over_rate
    assert after.asked_early <= rounds / 4, "but for requests that came late, before one in time"
    early = seen(wire, "bob").asked_early
    assert early > 3
    until(lambda: "bob" in wire.reports["kairos serving: rates"].message)
    assert "arm_1" not in wire.reports["kairos serving: rates"].message
    assert wire.counter("asked_early") >= early
    bob.leave()
    done(in_executor(wire.executor, handle.cancel_goal_async))
