"""A policy that keeps a state of every task, over DDS: real nodes, a real (tiny, untrained)
LingBot-VA, two simulated arms with a camera."""

import os
import signal
from collections import defaultdict

import numpy as np
import pytest
from lerobot.configs import FeatureType, PolicyFeature
from observations import options
from picture_probe import Rounds, key_of
from tiny_policies import save_policy, visual
from wire import Operator, until, worker_of

from kairos_ros.bringup import plan as bringup
from kairos_ros.engine.policies.policy_engine import load_policy_engine
from kairos_ros.nodes.serving.messages import to_request
from kairos_ros.serving.checks import with_policy_names
from kairos_ros.serving.request_queue import infer_request

pytestmark = pytest.mark.slow

LOADS_S = 180.0
"""Beside three other tests an engine imports torch for a minute."""

ROBOTS = ("one", "other")
CAMERA, SIZE = "corner2", (32, 48)
STATE_DIM, ACTION_DIM = 39, 4
GOAL = {"instruction": "reach", "scene": "reach-v3", "max_actions": 60}
LONGER = GOAL | {"max_actions": 180}
"""6 s at 30 Hz, of which two rounds are seen before the engine is killed."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    picture = f"observation.images.{CAMERA}"
    return save_policy(
        "lingbot_va",
        tmp_path_factory.mktemp("policy"),
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (STATE_DIM,)),
            picture: visual(*SIZE),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
        obs_cam_keys=[picture],
        used_action_channel_ids=[0, 1, 2, 3],
    )


@pytest.fixture(scope="module")
def rounds(wire):
    return Rounds(wire.node, ROBOTS)


@pytest.fixture(scope="module")
def server(policy, start_for_module, wire, rounds):
    # requests wait, so that observations are fetched again, in the middle of frames
    paced = f"paced:latency_ms=150:{policy}"
    serving = bringup.serving(policy=paced, horizon="static:11", stale_after_s=0.02)
    server = start_for_module(serving)
    wire.serving_since()
    return server


@pytest.fixture(scope="module")
def operators(server, wire, start_for_module):
    for robot in ROBOTS:
        images = [f"images={{{CAMERA}: {list(SIZE)}}}"]
        # on a busy machine a robot that pauses would go on without waiting for its chunk, and one
        # that hears nothing for 2 s would send its request again; the engine then computes a
        # second chunk of the round, which changes the task's state although no robot takes it
        waits = {"max_pause_s": 30.0, "request_timeout_s": 30.0, "request_timeout_max_s": 30.0}
        start_for_module(bringup.robot(robot, adapter_options=images, **waits))
    operators = {robot: Operator(wire, robot) for robot in ROBOTS}
    yield operators
    for operator in operators.values():
        operator.close()


def both(operators):
    goals = {robot: operator.give(**GOAL) for robot, operator in operators.items()}
    for robot, operator in operators.items():
        result = operator.result(goals[robot])
        assert result.actions == GOAL["max_actions"], result.outcome


def test_the_chunks_of_two_arms_are_those_of_their_own_episodes(operators, rounds, policy):
    both(operators)
    both(operators)
    until(lambda: len(rounds.served()) >= 20)
    assert any(request.attempt for request, _ in rounds.served()), "nothing was fetched again"
    alone = load_policy_engine(options(policy, max_batch=1), lambda _: None)
    described = alone.description
    # a round that was computed for nobody, as a starved robot had gone on or had fallen silent, is
    # in its task's state, too
    served, heard = rounds.served(), defaultdict(set)
    for request, _ in served:
        heard[key_of(request)[:3]].add(request.round)
    gaps = {task for task, numbers in heard.items() if len(numbers) < max(numbers)}
    left_out = rounds.refused | gaps
    whole = [one for one in served if key_of(one[0])[:3] not in left_out]
    assert whole
    for request, chunk in whole:  # in order: by robot, task and round
        asked = infer_request(with_policy_names(to_request(request), described))
        (outcome,) = alone.infer([asked])
        assert ("begun anew" in chunk.reason) == bool(outcome.begun_anew)
        told = np.reshape(chunk.actions, (chunk.horizon, ACTION_DIM))
        assert np.array_equal(told, outcome.chunk[: chunk.horizon])
    late = [chunk for request, chunk in whole if request.task_actions > 40]
    assert any("begun anew" not in chunk.reason for chunk in late)  # a busy host may make pauses


def test_a_task_whose_state_died_with_its_engine_goes_on_from_what_is_seen(
    operators, rounds, server, wire
):
    goals = {robot: operator.give(**LONGER) for robot, operator in operators.items()}
    rounds.answered.clear()
    until(lambda: all(len(rounds.served(robot)) >= 2 for robot in ROBOTS))
    os.kill(worker_of(server), signal.SIGKILL)
    for robot, operator in operators.items():
        until(goals[robot].done, LOADS_S, f"for {robot} to go on with a new engine")
        result = operator.result(goals[robot])
        assert result.actions == LONGER["max_actions"], result.outcome
    until(lambda: wire.counter("begun_anew") >= len(ROBOTS))
    lost = lambda robot: [c for _, c in rounds.served(robot) if "no state of its" in c.reason]  # noqa: E731
    until(lambda: all(map(lost, ROBOTS)), what="for both to begin anew")
