"""A robot that is pushed asks early: over DDS, with a simulated arm, and what everybody hears."""

import numpy as np
import pytest
from kairos_ros.msg import ChunkRequest, ExecutionInfo
from kairos_ros.srv import Disturb
from rclpy.serialization import deserialize_message, serialize_message
from robot_peer import PATIENT, chunk_for
from wire import answered, until

from kairos_ros.core.errors import WireError
from kairos_ros.core.exchange import Execution, Request, RequestId
from kairos_ros.nodes.robot.messages import Identity, request_message
from kairos_ros.nodes.serving.messages import to_request
from kairos_ros.robot.adapter import RobotSpec

HORIZON = 40
SURPRISED = Execution(round=1, surprised=True, surprise=7.25, surprise_joint="elbow.pos")


def wave(request):
    """The hand goes round and round, above the table."""
    at = 7 * request.round + np.arange(HORIZON)
    moves = [0.5 * np.sin(at / 4), 0.5 * np.cos(at / 5), 0.2 * np.sin(at / 6), np.zeros(HORIZON)]
    return chunk_for(request, np.stack(moves, axis=1))


def test_a_pushed_arm_asks_early_and_everybody_hears_how_much_and_which_joint(start_robot, peer):
    options = ("surprise:=tracking:threshold=6", "disturbances:=true", "guard.tolerance:=1.0")
    robot = start_robot(*options, *PATIENT)
    peer.answer = lambda request: [wave(request)]
    handle = peer.give(max_actions=900)
    until(lambda: peer.feedback and peer.feedback[-1].actions > 180)  # it knows the arm by now
    asked = [r for r in peer.requests if not r.attempt]
    assert not any(r.execution.surprised for r in asked)
    assert all(r.execution.actions_remaining <= HORIZON // 2 for r in asked)
    push = peer.node.create_client(Disturb, f"/{peer.robot}/disturb")
    early = lambda: [r for r in peer.requests if r.execution.surprised and not r.attempt]  # noqa: E731
    told = lambda: any(info.surprised for info in peer.heard[ExecutionInfo])  # noqa: E731
    # a push that comes late, where it has asked anyway, asks for nothing; of its execution only the
    # newest is heard
    while not (early() and told()):
        # in the middle of a chunk, which then has many actions left
        until(lambda: 18 < peer.feedback[-1].buffered < 28)
        heard = len(peer.requests)
        assert answered(push, Disturb.Request(robot=peer.robot, what="push", seed=1)).ok
        until(lambda heard=heard: len(peer.requests) > heard, what="for the next request")
    result = peer.result(handle).result

    early = early()
    first = early[0].execution
    assert first.surprise > 6.0
    assert first.surprise_joint in ("state_0", "state_1", "state_2")
    assert all(0 <= info.surprise <= 10 for info in peer.heard[ExecutionInfo])
    by_round = np.array(result.round_surprise)
    assert len(by_round) == result.rounds
    of_early = by_round[[r.round - 1 for r in early]]
    np.testing.assert_allclose(of_early, [r.execution.surprise for r in early])
    assert (by_round > 0).sum() == len(early)
    until(lambda: int(peer.diagnostic("rounds asked for early by surprise") or 0) == len(early))
    assert f"asks early for round {early[0].round}" in robot.output()


def test_a_robot_with_a_rule_that_is_none_does_not_start_and_says_what_there_is(start_robot):
    robot = start_robot("surprise:=psychic")
    until(lambda: "unknown surprise policy 'psychic'; known here: tracking" in robot.output())


def test_a_request_travels_with_its_surprise_and_one_that_cannot_be_is_refused():
    who = Identity("arm_1", "now", RobotSpec(1, 1, 30.0))
    asked = Request(RequestId("arm_1", "now", "1", 2, 0), "reach", execution=SURPRISED)
    message = request_message(who, asked)
    message = deserialize_message(serialize_message(message), ChunkRequest)
    told = to_request(message).execution
    assert (told.surprised, told.surprise, told.surprise_joint) == (True, 7.25, "elbow.pos")
    for wrong in (float("nan"), float("inf"), -1.0, 11.0):
        message.execution.surprise = wrong
        with pytest.raises(WireError, match=r"execution\.surprise is .*; it goes from 0 to 10"):
            to_request(message)
