"""One serving node whose policies do not fit into its memory together: real node, real workers."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kairos_ros.msg import ActionChunk, ServerStatus
from wire import PATIENCE_S, WireRobot, until, until_served

from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.robot import one_robot
from kairos_ros.core.errors import RefusalCode

OLD = "emulated:latency_ms=5,chunk=20,state=2,dim=2,memory_mib=300,load_s=0.5"
NEW = OLD + ",offset=10"
BUDGET = {"policies": [f"old={OLD}", f"new={NEW}"], "horizon": "static:7"}


@pytest.fixture
def robots(wire):
    """Makes robots that ask; they leave after the test."""
    made = []

    def new(name, **observation):
        made.append(WireRobot(wire, name, **observation))
        return made[-1]

    yield new
    for robot in made:
        robot.leave()


def states(wire):
    return {engine.engine: engine.state for engine in wire.fleet[-1].engines}


def until_state(wire, engine, *wanted):
    until(lambda: states(wire)[engine] in wanted, what=f"for {engine} to be {wanted}")


def test_policies_that_do_not_fit_together_are_loaded_when_they_are_needed_and_take_turns(
    start, wire, robots
):
    logged = wire.rosout()
    start(serving(**BUDGET, memory_budget_mib=500))
    wire.serving_since()
    until_state(wire, "edge/old", "ready")
    assert states(wire)["edge/new"] == "not loaded"

    def policies():
        (status,) = [s for s in [*wire.servers.values()] if s.state == ServerStatus.ACTIVE]
        return [(p.name, bool(p.policy)) for p in status.policies]

    until(
        lambda: policies() == [("old", True), ("new", False)], what="for the status of the server"
    )

    second = robots("arm_2", state=[0.5, 0.0], policy="new").join()
    refusals = {a.refusal for a in second.answers if a.kind == ActionChunk.REFUSED}
    assert refusals <= {RefusalCode.ENGINE_DOWN}
    until(lambda: wire.counter("refused_engine_down"), what="for the refusal to be counted")
    assert until_served(second, 1).actions[0] == 10.5
    until_state(wire, "edge/old", "ending", "not loaded")  # no task needed it

    first = robots("arm_1", state=[0.25, 0.0], policy="old").join()
    answer = until_served(first, 1)
    assert (answer.engine, answer.actions[0]) == ("edge/old", 0.25)
    until_state(wire, "edge/new", "not loaded")
    assert until_served(second, 2).actions[0] == 10.5
    taking_turns = "are needed at the same time and do not fit into memory_budget_mib = 500"
    until(lambda: any(level == "WARN" and taking_turns in text for level, text in [*logged]))
    name = "kairos serving: memory"
    told = lambda: any(name == n and taking_turns in m for n, _, m in [*wire.said])  # noqa: E731
    until(told, what="for the diagnostics")
    assert wire.diagnostic(name, "edge/new takes (MiB)") == "300"
    assert float(wire.diagnostic(name, "edge/new loads in (s)")) > 0.5


def test_a_task_says_that_it_waits_for_its_policy_to_be_loaded(start, wire, domain_id):
    pendulum = "emulated:latency_ms=5,chunk=20,state=3,dim=1,memory_mib=300,load_s=8"
    policies = [f"old={pendulum}", f"new={pendulum}"]
    start(serving(policies=policies, horizon="static:5", memory_budget_mib=500))
    start(one_robot("arm_1", adapter_options="env_id=Pendulum-v1"))
    wire.serving_since()
    wire.status_of("arm_1")
    line = [Path(sys.executable).with_name("kairos"), "task", "send", "arm_1", "swing"]
    line += ["--policy", "new", "--domain", str(domain_id)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as sending:
        why = "arm_1 holds, waiting for actions (policy new is not loaded yet)"
        until(lambda: why in sending.stdout.readline(), what="for the reason")
        until(lambda: "arm_1 moves" in sending.stdout.readline(), what="for the policy")
        sending.send_signal(signal.SIGINT)


def test_a_policy_that_is_greater_than_the_budget_ends_the_start(start, wire):
    node = start(serving(**BUDGET, memory_budget_mib=200))
    assert node.process.wait(PATIENCE_S) == 1
    assert "policy old takes 300 MiB, and memory_budget_mib is 200; raise it" in node.output()
