"""The serving node as a managed ROS node: its life, what it tells, and how it is set up wrongly."""

import itertools
import json
import os
import signal
from pathlib import Path

import pytest
from kairos_ros.msg import ActionChunk
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import GetState
from wire import LATE_S, Wire, WireRobot, answered, until

from kairos_ros.bringup.plan import serving
from kairos_ros.host.child_processes import children

POLICY = "emulated:latency_ms=20+5b,chunk=20,state=2,dim=2"
AT_ONCE = POLICY + ",steps=0"
"""Like ACT: without sampler steps."""
STATE = {"state": [0.25, 0.0]}


def state_of(wire: Wire) -> int:
    client = wire.node.create_client(GetState, "/kairos/serving/get_state")
    return answered(client, GetState.Request()).current_state.id


@pytest.fixture
def server_of(start, wire):
    """Starts a serving node and waits until it is active."""

    def begin(**parameters):
        before = wire.fleet[-1].server if wire.fleet else ""
        node = start(serving(**parameters))
        wire.serving_since(before)
        return node

    return begin


@pytest.fixture
def join(wire):
    """Makes robots that are served; they leave after the test."""
    robots: list[WireRobot] = []

    def new(name: str, **observation) -> WireRobot:
        robots.append(WireRobot(wire, name, **observation))
        return robots[-1].join()

    yield new
    for robot in robots:
        robot.leave()


def test_robots_are_served_together_with_actions_made_from_their_own_observations(
    server_of, join, wire
):
    server_of(policy=POLICY, horizon="static:7", stale_after_s=0.0)
    robots = [join(f"arm_{i}", state=[float(i), 0.0]) for i in range(6)]
    answered = [len(robot.answers) for robot in robots]
    for robot in robots:
        robot.requests.publish(robot.request(2))
    for i, robot in enumerate(robots):
        answer = until(lambda i=i, robot=robot: robot.answers[answered[i] :])[0]
        assert (answer.kind, answer.horizon, answer.action_dim) == (ActionChunk.ACTIONS, 7, 2)
        assert answer.actions[::2].tolist() == [float(i)] * 7  # of its own observation
        assert answer.actions[1::2].tolist() == [float(n) for n in range(7)]  # in order
        assert "static" in answer.horizon_reason
        assert 0 < answer.compute_s <= answer.server_s
        assert answer.tier == "edge"
    assert max(robot.answers[-1].batch_size for robot in robots) > 1

    def told() -> bool:
        state = wire.fleet[-1]
        served = {r.robot for r in state.robots if r.rounds_served >= 2}
        return served == {robot.name for robot in robots} and state.engines[0].requests >= 12

    until(told, what="for the fleet state to tell")
    assert wire.counter("chunks") >= 12
    until(lambda: wire.diagnostic("kairos serving: queue", "robots") == "6")
    for robot in robots:
        robot.leave()
    until(lambda: not wire.fleet[-1].robots)


def test_a_lifecycle_manager_takes_the_node_through_its_whole_life_twice(start, wire):
    node = start(serving(policy=POLICY, autostart=False))
    assert state_of(wire) == State.PRIMARY_STATE_UNCONFIGURED
    for _ in range(2):
        assert wire.transition(Transition.TRANSITION_CONFIGURE)
        (worker,) = children(node.process.pid)
        assert state_of(wire) == State.PRIMARY_STATE_INACTIVE
        assert wire.transition(Transition.TRANSITION_ACTIVATE)
        robot = WireRobot(wire, "arm_1", **STATE).join()
        assert robot.ask(50).kind == ActionChunk.ACTIONS
        robot.leave()
        assert wire.transition(Transition.TRANSITION_DEACTIVATE)
        assert wire.transition(Transition.TRANSITION_CLEANUP)
        assert not Path(f"/proc/{worker}").exists()
        assert state_of(wire) == State.PRIMARY_STATE_UNCONFIGURED
    assert node.stop() == 0


def test_an_old_observation_is_fetched_again_before_it_is_used(server_of, join):
    server_of(policy=POLICY, stale_after_s=0.05)
    robot = join("arm_1", **STATE)
    rounds = itertools.count(60)

    def fresh():
        round = next(rounds)
        assert robot.ask(round, observed_ago_s=3.0).kind == ActionChunk.REFETCH
        try:
            return robot.ask(round, LATE_S, attempt=1, state=[0.5, 0.0])
        except AssertionError:  # it came later than 30 ms: the round was served without it
            return None

    chunk = until(fresh)
    assert (chunk.kind, chunk.actions[0]) == (ActionChunk.ACTIONS, 0.5)


def test_a_newer_observation_that_comes_too_late_is_answered_by_the_chunk_of_the_older_one(
    server_of, join
):
    server_of(policy=POLICY, stale_after_s=0.05)
    robot = join("arm_1", **STATE)
    assert robot.ask(60, observed_ago_s=3.0).kind == ActionChunk.REFETCH
    until(lambda: robot.answers[-1].kind == ActionChunk.ACTIONS)  # from what there was
    assert robot.ask(60, or_older=True, attempt=1).attempt == 0
    assert robot.ask(61).kind == ActionChunk.ACTIONS


def test_a_request_past_its_deadline_is_refused_while_the_engine_is_busy(server_of, join, wire):
    server_of(policy="emulated:latency_ms=4000,state=2,dim=2", stale_after_s=0.0, max_batch=1)
    first, second = join("arm_1", **STATE), join("arm_2", **STATE)
    first.requests.publish(first.request(70))
    until(lambda: wire.engine_state() == "busy")
    late = second.ask(70, deadline_s=0.2)
    assert late.kind == ActionChunk.REFUSED
    assert "still queued after" in late.reason
    assert late.retry_after_s > 0
    until(lambda: wire.counter("refused_deadline") == 1)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_node_that_is_stopped_leaves_nothing_behind(server_of, sig):
    node = server_of(policy=POLICY)
    (worker,) = children(node.process.pid)
    node.send(sig)
    node.send(sig)  # an impatient user
    assert node.stop() == 0
    assert not Path(f"/proc/{worker}").exists()
    assert "Traceback" not in node.output()


def test_a_node_that_is_stopped_while_its_engine_loads_leaves_at_once(start):
    node = start(serving(policy=str(Path(__file__).parent)))
    (worker,) = until(lambda: children(node.process.pid))
    assert node.stop() in (0, 1)  # 1: it had found out that this is no policy
    until(lambda: not Path(f"/proc/{worker}").exists())


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"policy": ""}, "parameter policy is empty"),
        (
            {"policies": ["a=" + POLICY, "a=" + AT_ONCE]},
            "'a' cannot be the name of a policy",
        ),
        ({"policies": ["a=" + POLICY], "policy": POLICY}, "leave out one: policy is for one"),
        ({"policies": ["a=" + POLICY, "b=/nowhere/policy"]}, "there is no policy folder /nowhere"),
        ({"policies": ["a"]}, "name engines elsewhere in parameter engines"),
        ({"policies": ["a=" + POLICY], "policy_options": ["b.rtc=true"]}, "'b' is no policy of"),
        ({"policy": POLICY, "policy_options": ["a.rtc=true"]}, "those of parameter policies"),
        ({"policy": "/nowhere/policy"}, "there is no policy folder /nowhere/policy"),
        ({"policy": "emulated:speed=3"}, "unknown option 'speed=3'"),
        ({"policy": POLICY, "scheduling": "lottery"}, "lottery"),
        ({"policy": POLICY, "horizon": "hunch"}, "hunch"),
        ({"policy": AT_ONCE, "horizon": "confidence"}, "use static:H, tail_agreement or calib"),
        ({"policy": POLICY, "max_batch": 0}, "goes from 1 to 256"),
        ({"policy": POLICY, "dtype": "int4"}, "choose from auto"),
        ({"policy": POLICY, "fleet_state_rate": 5.0}, "did you mean 'fleet_state_hz'"),
        ({"policy": POLICY, "profile": "/nowhere/p.json"}, "/nowhere/p.json"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_wrong_configuration_ends_the_start_and_says_why(start, parameters, said):
    node = start(serving(**parameters))
    assert node.process.wait(60) != 0
    assert said in node.output()
    assert "Traceback" not in node.output()


def test_a_killed_node_takes_its_worker_along(server_of):
    node = server_of(policy=POLICY)
    (worker,) = children(node.process.pid)
    os.kill(node.process.pid, signal.SIGKILL)
    node.process.wait()
    until(lambda: not Path(f"/proc/{worker}").exists(), what="for the worker to end")
