"""A robot whose policy reads three observations, over DDS: real nodes, and an engine whose actions
tell which observations it was given."""

import itertools

import numpy as np
import pytest
from far_worker import Cloud, engine
from kairos_ros.msg import ActionChunk, Observation
from picture_probe import Rounds
from wan import PORT, ProxyWan
from wire import Bystander, Operator, WireRobot, until

from kairos_ros.bringup import plan as bringup
from kairos_ros.core.errors import RefusalCode
from kairos_ros.robot.body_log import read_body_log

NAME, STATE_DIM = "mover", 39
SIZES = f"state={STATE_DIM},dim=4,chunk=20,steps=4,observations=3"
GOAL = {"instruction": "reach", "scene": "reach-v3", "max_actions": 60}

ROUNDS = itertools.count(2)
"""Of the robot that is none, in one task."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("body")


@pytest.fixture(scope="module")
def rounds(wire):
    return Rounds(wire.node, [NAME])


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """An engine elsewhere, for what the edge has no time for."""
    folder = tmp_path_factory.mktemp("cloud")
    cloud = Cloud.with_keys(ProxyWan, folder, f"pick=emulated:latency_ms=20,{SIZES}")
    cloud.start()
    yield cloud
    cloud.end()


@pytest.fixture(scope="module")
def operator(start_for_module, wire, rounds, logs, cloud):
    engines = [f"cloud=tcp://127.0.0.1:{PORT}"]
    edge = f"emulated:latency_ms=200,{SIZES}"
    start_for_module(
        bringup.serving(
            policy=edge,
            max_batch=1,
            horizon="static:10",
            stale_after_s=0.0,
            engines=engines,
            keys=str(cloud.here),
        )
    )
    # a pause of a busy machine would begin the history anew
    start_for_module(bringup.robot(NAME, body_log=str(logs), max_pause_s=30.0))
    wire.serving_since()
    until(lambda: wire.fleet and engine(wire, "cloud").state == "ready")
    operator = Operator(wire, NAME)
    yield operator
    operator.close()


def test_the_engine_is_given_what_the_body_saw_in_the_last_control_periods(
    operator, rounds, logs, wire
):
    others = [
        Bystander(wire, f"other_{i}", state=[0.5] * STATE_DIM).begin(pause_s=0.0) for i in (1, 2)
    ]
    assert operator.result(operator.give(**GOAL)).actions == 60
    for other in others:
        other.end()
    assert operator.result(operator.give(**GOAL)).actions == 60
    until(lambda: len(rounds.served()) >= 10)
    assert {chunk.tier for _, chunk in rounds.served()} == {"cloud", "edge"}
    (log,) = logs.iterdir()
    body = [event for event in read_body_log(log) if event.kind not in ("reset", "ready")]
    begun = next(i for i, event in enumerate(body) if event.kind == "observe")
    kinds = ["look" if event.kind == "observe" else "motion" for event in body[begun:]]
    assert kinds[:120] == ["look", "motion"] * 60  # one in every period of the first task
    looks_of, task = {}, ""
    for event in body:
        task = event.task or task
        if event.kind == "observe":
            looks_of.setdefault(task, []).append(event.state)
    assert all(np.ptp([state[0] for state in looks]) > 1e-3 for looks in looks_of.values())

    most = 0
    for request, chunk in rounds.served():
        looks = looks_of[request.task]
        sent = [*(seen.state for seen in request.earlier), request.state]
        last_three = ([looks[max(0, i - back)] for back in (2, 1, 0)] for i in range(len(looks)))
        assert any(np.array_equal(sent, three) for three in last_three)
        # 0 is the newest, 2 and 3 are the ones before; 1 is the row
        told = np.reshape(chunk.actions, (-1, 4))[:, [3, 2, 0]]
        assert np.array_equal(told, np.tile([state[0] for state in sent], (len(told), 1)))
        most = max(most, len({state[0] for state in sent}))
    assert most == 3, "it moves"


@pytest.fixture(scope="module")
def older(operator, wire):
    """A robot that knows nothing of history."""
    robot = WireRobot(wire, "older", state=[0.5] * STATE_DIM)
    yield robot.join()
    robot.leave()


def test_a_robot_that_sends_one_observation_is_served_and_warned_of_once(older, wire):
    logged = wire.rosout()
    for _ in range(2):
        answer = older.ask(next(ROUNDS))
        assert answer.kind == ActionChunk.ACTIONS
    until(lambda: wire.counter("repeated_observation") >= 3)  # with the one that it joined with

    def warnings():
        return [text for _, text in list(logged) if "older sends 1 of the 3" in text]

    until(warnings)
    assert len(warnings()) == 1


@pytest.mark.parametrize(
    ("earlier", "code"),
    [
        ([[0.5] * STATE_DIM] * 3, RefusalCode.MALFORMED),
        ([[0.5] * STATE_DIM] * 16, RefusalCode.TOO_LARGE),
        ([[0.5] * STATE_DIM, [0.5]], RefusalCode.BAD_STATE),
        ([[0.5] * STATE_DIM, [float("nan")] * STATE_DIM], RefusalCode.NOT_FINITE),
    ],
)
def test_a_wrong_history_is_refused_to_its_robot_only(older, operator, wire, earlier, code):
    refused = older.ask(next(ROUNDS), earlier=[Observation(state=state) for state in earlier])
    assert (refused.kind, refused.refusal) == (ActionChunk.REFUSED, code)
    until(lambda: wire.counter(f"refused_{code.name.lower()}") >= 1)
    result = operator.result(operator.give(instruction="reach", scene="reach-v3", max_actions=10))
    assert result.actions == 10
