"""Rates and routes of a plan over DDS: told, kept to or named; and plans that a node refuses."""

import time
from dataclasses import replace

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from kairos_ros.msg import ActionChunk, RobotState
from managed import parameters_of
from rclpy.parameter import Parameter
from wire import ATTEMPTS, WireRobot, done, until

from kairos_ros.bringup.plan import serving
from kairos_ros.core.placement.served_plan import PlannedEngine, ServedPlan
from kairos_ros.nodes.clients.fleet_client import FleetClient, disagreements

POLICY = "emulated:latency_ms=20,chunk=20,state=3,dim=1"
PERIOD_S = 0.5
PLAN = ServedPlan(
    "cells",
    {"p": {"policy": POLICY}},
    (PlannedEngine("gpu0", "cpu", "p", 4, ("keeps", "ignores")),),
    {"keeps": PERIOD_S, "ignores": PERIOD_S},
)

pytestmark = pytest.mark.slow


def seen(wire, robot: str) -> RobotState:
    return next((r for r in wire.fleet[-1].robots if r.robot == robot), RobotState())


def asks(robot: WireRobot, first: int, seconds: float, pause_s: float) -> int:
    """Asks for round after round, and returns how many times actions came.

    Sends a newer observation when the server asks for one: what it computes for a round that was
    given up is dropped.
    """
    round_, until_s, before = first, time.monotonic() + seconds, len(robot.answers)
    while time.monotonic() < until_s:
        answer = robot.ask(round_)
        while answer.kind == ActionChunk.REFETCH:
            answer = robot.ask(round_, or_older=True, attempt=next(ATTEMPTS))
        round_ += 1
        time.sleep(pause_s)
    return sum(answer.kind == ActionChunk.ACTIONS for answer in robot.answers[before:])


def test_a_robot_that_ignores_its_planned_rate_gets_no_more_and_is_named(start, wire):
    start(serving(plan=PLAN.text, horizon="static:4"))
    wire.serving_since()
    keeps, ignores = (
        WireRobot(wire, name, state=[0.0, 0.0, 0.0]).join() for name in ("keeps", "ignores")
    )
    assert keeps.answers[-1].request_period_s == pytest.approx(PERIOD_S)
    assert keeps.answers[-1].engine == "gpu0/p"
    asks(keeps, 2, 1.5, PERIOD_S)
    began_s = time.monotonic()
    answered = asks(ignores, 2, 4.0, 0.0)
    assert 2 < answered <= 2 + (time.monotonic() - began_s) / PERIOD_S
    until(lambda: seen(wire, "ignores").over_rate)
    assert not seen(wire, "keeps").over_rate
    assert seen(wire, "ignores").planned_period_s == pytest.approx(PERIOD_S)
    assert seen(wire, "ignores").planned_engine == "gpu0/p"
    until(lambda: "ignores" in wire.reports["kairos serving: rates"].message)
    assert "keeps" not in wire.reports["kairos serving: rates"].message
    assert wire.reports["kairos serving: rates"].level == DiagnosticStatus.WARN
    for robot in (keeps, ignores):
        robot.leave()

    parameters = parameters_of(wire, "/kairos/serving")

    def refused(text: str) -> str:
        (result,) = done(parameters.set_parameters([Parameter("plan", value=text)])).results
        assert not result.successful
        return result.reason

    other = {"p": {"policy": f"{POLICY},offset=1"}}
    assert "no plan of `kairos fleet`" in refused("{}")
    assert "started without a plan cannot get one, nor lose" in refused("")
    assert "tasks that run would get other weights" in refused(
        ServedPlan("cells", other, PLAN.engines, {}).text
    )
    assert wire.fleet[-1].plan == PLAN.identity
    assert not wire.fleet[-1].staged_plan


def test_a_staged_plan_is_not_followed_before_it_is_the_plan(start, wire):
    """Whoever told the node to prepare for it may have died since."""
    engine = replace(PLAN.engines[0], gpu="gpu1")
    other = replace(PLAN, engines=(engine,), periods_s={})
    start(serving(plan=PLAN.text))
    wire.serving_since()
    parameters = parameters_of(wire, "/kairos/serving")

    def take(**values: str) -> None:
        asked = [Parameter(name, value=value) for name, value in values.items()]
        result = done(parameters.set_parameters_atomically(asked)).result
        assert result.successful, result.reason

    def engines() -> dict[str, str]:
        return {one.engine: one.state for one in wire.fleet[-1].engines}

    def stage() -> None:
        take(staged_plan=other.text)
        until(lambda: engines().get("gpu1/p") == "ready", what="for its engine")
        heard = len(wire.fleet)
        until(lambda: len(wire.fleet) > heard + 5, what="for further states")
        state = wire.fleet[-1]
        assert (state.plan, state.staged_plan) == (PLAN.identity, other.identity)
        assert not state.plan_reason, "it waits for nothing but to be followed"

    for _ in range(2):
        stage()
        take(plan=PLAN.text, staged_plan="")  # it is called off
        until(lambda: list(engines()) == ["gpu0/p"], what="for its engine to end")
    stage()
    take(plan=other.text, staged_plan="")
    until(lambda: list(engines()) == ["gpu1/p"], what="for the old engine to end")
    assert (wire.fleet[-1].plan, wire.fleet[-1].staged_plan) == (other.identity, "")


def test_a_standby_beside_a_planned_serving_node_is_not_taken_for_it(start, wire):
    start(serving(plan=PLAN.text))
    wire.serving_since()
    start(serving(policy=POLICY, standby_after_s=3.0))  # the other one may get no processor
    until(lambda: not wire.fleet[-1].plan, what="for the fleet state of the standby")
    client = FleetClient("test_client")
    try:
        until(lambda: client.spin(0.1) or client.state, what="for a fleet state")
        heard = len(wire.fleet)

        def both_were_heard():
            client.spin(0.05)
            state = client.state
            assert state is None or state.plan == PLAN.identity
            return {"", PLAN.identity} <= {state.plan for state in wire.fleet[heard:]}

        until(both_were_heard)
        until(lambda: client.spin(0.1) or (client.state and client.state.active))
        assert disagreements(PLAN, client.state) == [
            "robot keeps is not here",
            "robot ignores is not here",
        ]
    finally:
        client.close()
