"""Robots that are two, that die, that are told what is not for them, and that live in another time.

Real robot nodes with a simulated body (a pendulum, which starts quickly) and a real serving node;
a second robot is served without a break all the while.
"""

import itertools
import math
import signal

import pytest
from clocks import another_boot, robot_host, wall_clock_library
from diagnostic_msgs.msg import DiagnosticStatus
from kairos_ros.msg import ActionChunk, RobotStatus
from wire import Bystander, Operator, Wire, WireRobot, in_executor, until

from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.core.errors import RefusalCode
from kairos_ros.nodes import qos
from kairos_ros.robot.name_owner import DOUBT_NS, TIE_NS

REQUESTS = "kairos serving: requests"
STATE = {"state": [0.5, 0.0, 0.0]}


def pendulum(name: str) -> ProcessSpec:
    """A robot whose task never succeeds, so that it ends when its actions are used up. It asks for
    each round once also where it or its server gets no processor for a while."""
    patient = {"max_pause_s": 30.0, "request_timeout_s": 10.0}
    body = {"adapter_options": ["env_id=Pendulum-v1"]}
    return ProcessSpec("robot_node", "robot", name, body | patient)


@pytest.fixture(scope="module")
def server(start_for_module, wire):
    node = start_for_module(
        serving(policy="emulated:latency_ms=20,chunk=20,state=3,dim=1", horizon="static:10")
    )
    wire.serving_since()
    return node


@pytest.fixture(scope="module")
def bystander(server, wire):
    bystander = Bystander(wire, "bystander", **STATE).begin()
    yield bystander
    bystander.end()


@pytest.fixture(autouse=True)
def nobody_else_is_affected(server, bystander):
    bystander.check(rounds=1)
    yield
    bystander.check()
    assert server.process.poll() is None


names = (f"arm_{i}" for i in itertools.count(1))


@pytest.fixture
def name():
    return next(names)


@pytest.fixture
def operator(wire, name):
    operator = Operator(wire, name)
    yield operator
    operator.close()


def executed(wire: Wire, name: str, at_least: int) -> None:
    until(
        lambda: wire.status_of(name).actions_executed >= at_least,
        what=f"for {name} to execute {at_least} actions",
    )


def test_a_second_robot_node_of_the_same_name_changes_nothing_until_the_first_is_dead(
    start, wire, operator, name
):
    first = start(pendulum(name))
    # of two that began together the smaller session keeps the name, whoever was first
    until(lambda: wire.status_of(name).takes_goals_s > (TIE_NS + DOUBT_NS) / 1e9)
    goal = operator.give(instruction="swing", max_actions=120)
    executed(wire, name, 10)
    owner = wire.status_of(name).session
    second = start(pendulum(name))
    until(lambda: wire.status_of(name).session != owner)
    until(lambda: "another robot node is called" in second.output())
    # a node that DDS told late of the first one had an action server until it heard of it
    until(lambda: wire.node.count_services(f"/{name}/execute_task/_action/send_goal") == 1)
    until(lambda: "takes no goals" in wire.diagnostic(f"kairos: {name}", "strange publishers"))
    result = operator.result(goal)
    assert (result.outcome, result.actions) == ("max_actions", 120)
    assert result.refusals == result.dropped == 0

    first.stop(signal.SIGKILL)
    until(lambda: [s for s in wire.statuses if s.robot == name][-1].takes_goals_s > 0)
    result = operator.result(operator.give(instruction="swing", max_actions=30))
    assert (result.outcome, result.actions) == ("max_actions", 30)
    assert second.process.poll() is None


@pytest.mark.parametrize("takes_goals_s", [math.inf, -math.inf, math.nan, -1.0, 3e38])
def test_a_status_that_no_robot_sends_takes_no_name_away(
    start, wire, operator, name, takes_goals_s
):
    robot = start(pendulum(name))
    goal = operator.give(instruction="swing", max_actions=60)
    forged = wire.node.create_publisher(RobotStatus, "/kairos/robot_status", qos.ANNOUNCEMENT)
    forged.publish(RobotStatus(robot=name, session="a", takes_goals_s=takes_goals_s))
    until(lambda: wire.diagnostic(f"kairos: {name}", "refused_status"))
    assert operator.result(goal).outcome == "max_actions"
    mine = [s for s in wire.statuses if s.robot == name and s.session != "a"]
    assert mine[-1].takes_goals_s > 0
    assert "takes_goals_s is" in robot.output()
    in_executor(wire.executor, lambda: wire.node.destroy_publisher(forged))


def test_a_robot_whose_name_is_taken_is_refused_and_served_once_the_name_is_free(
    start, wire, operator, name
):
    before = wire.counter("refused_duplicate_robot")
    owner = WireRobot(wire, name, **STATE).join()
    start(pendulum(name))
    goal = operator.give(instruction="swing", max_actions=30)
    refusal = until(lambda: [a for a in owner.answers if a.session != owner.session])[0]
    assert refusal.refusal == RefusalCode.DUPLICATE_ROBOT
    assert refusal.retry_after_s > 0
    until(lambda: wire.counter("refused_duplicate_robot") > before)
    until(lambda: int(wire.diagnostic(REQUESTS, "refused_duplicate_robot") or 0) > before)
    assert owner.ask(2).kind != ActionChunk.REFUSED  # whoever was first is served

    owner.fall_silent()
    result = operator.result(goal)
    assert (result.outcome, result.actions) == ("max_actions", 30)
    assert result.refusals >= 1


def test_chunks_for_others_are_dropped_counted_and_never_executed(start, wire, operator, name):
    start(pendulum(name))
    chunks = wire.node.create_publisher(ActionChunk, f"/{name}/action_chunk", qos.EXCHANGE)
    goal = operator.give(instruction="swing", max_actions=300)
    executed(wire, name, 10)
    mine = wire.status_of(name)
    wild = {"round": 1, "kind": ActionChunk.ACTIONS, "horizon": 2, "action_dim": 1}
    wild["server"] = mine.server
    stray = {
        "other_robot": {"robot": "someone", "session": mine.session, "task": mine.task},
        "other_session": {"robot": name, "session": "before", "task": mine.task},
        "other_task": {"robot": name, "session": mine.session, "task": "7"},
        "old_round": {"robot": name, "session": mine.session, "task": mine.task, "round": 0},
    }
    for fields in stray.values():
        chunks.publish(ActionChunk(**(wild | fields), actions=[2.0, 2.0]))

    for reason in stray:
        key = f"dropped, {reason}"
        until(lambda key=key: wire.diagnostic(f"kairos: {name}", key) == "1", what=f"for {key}")
    warned = (f"kairos: {name}", DiagnosticStatus.WARN)
    assert any((who, level) == warned and "dropped" in text for who, level, text in [*wire.said])
    result = operator.result(goal)
    assert (result.outcome, result.actions) == ("max_actions", 300)
    assert result.dropped == len(stray)
    until(lambda: wire.status_of(name).chunks_dropped == len(stray))


def test_a_robot_that_was_killed_comes_back_as_a_new_session_and_drops_its_old_chunks(
    start, wire, operator, name
):
    first = start(pendulum(name))
    heard: list[ActionChunk] = []
    wire.node.create_subscription(ActionChunk, f"/{name}/action_chunk", heard.append, qos.EXCHANGE)
    operator.give(instruction="swing")
    executed(wire, name, 10)
    old = wire.status_of(name).session
    first.stop(signal.SIGKILL)
    late = until(lambda: [c for c in heard if c.kind == ActionChunk.ACTIONS])[-1]

    start(pendulum(name))
    until(lambda: wire.status_of(name).session != old)
    goal = operator.give(instruction="swing", max_actions=60)
    executed(wire, name, 5)
    chunks = wire.node.create_publisher(ActionChunk, f"/{name}/action_chunk", qos.EXCHANGE)
    until(chunks.get_subscription_count)
    chunks.publish(late)
    result = operator.result(goal)
    assert (result.outcome, result.actions) == ("max_actions", 60)
    until(lambda: wire.diagnostic(f"kairos: {name}", "dropped, other_session") == "1")
    until(lambda: wire.status_of(name).state == RobotStatus.IDLE)


@pytest.fixture(scope="module")
def wall_clock(tmp_path_factory):
    return wall_clock_library(tmp_path_factory.mktemp("clock"))


@pytest.mark.parametrize("ahead_s", [10, -10])
def test_a_host_whose_clock_is_off_is_served_like_any_other(
    start, wire, operator, wall_clock, name, ahead_s
):
    refused = {n: wire.counter(n) for n in wire.fleet[-1].counter_names if "refused" in n}
    start(pendulum(name), prefix=another_boot(86_400), env=robot_host(wall_clock, ahead_s))
    result = operator.result(operator.give(instruction="swing", max_actions=90))

    assert wire.stamps[f"kairos: {name}"] == pytest.approx(ahead_s, abs=5), "the clock is not off"
    assert (result.outcome, result.actions) == ("max_actions", 90)
    assert result.refusals == result.dropped == 0
    assert max(result.round_latency_s) < 5  # 10 s would show
    assert {n: wire.counter(n) for n in refused} == refused
