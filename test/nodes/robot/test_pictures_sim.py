"""Pictures end to end on simulated arms in different scenes, two of them on one server.

Their requests wait for a slow engine, so that observations are fetched again; then the same from
the bag, and with an engine behind a link that compresses pictures.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from far_worker import Cloud
from picture_probe import ENVIRONMENT, JPEG_ERROR, Rounds, save_probe, seen, told
from ports import free_ports
from wire import Operator, until

from kairos_ros.bringup import plan as bringup

SIZE = (96, 128)
CAMERAS = ("corner2", "gripperPOV")
SCENES = {"arm_1": "drawer-open-v3", "arm_2": "button-press-topdown-v3"}
SEED = 3
STATE_DIM, ACTION_DIM = 39, 4
GAIN = 1.0
EXACT = 1e-3
"""Of mean colours 0..1, where nothing is compressed again."""
KAIROS = Path(sys.prefix, "bin", "kairos")
SUPPORT = Path(__file__).parents[2] / "support"
RENDER = f"""
import sys
sys.path[:0] = {[str(SUPPORT), str(SUPPORT / "policies")]!r}
from picture_probe import mean_colour
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.sim import SimAdapter
arm = SimAdapter(images=dict.fromkeys({CAMERAS}, {SIZE}))
for scene in {tuple(SCENES.values())}:
    arm.reset(TaskGoal("look", scene, {SEED}))
    pictures = arm.observe().images
    print(*(value for camera in {CAMERAS} for value in mean_colour(pictures[camera])))
"""


@pytest.fixture(scope="module")
def truth():
    """What each camera sees in each scene before anything moves: float [robot][camera, 3]."""
    command = [sys.executable, "-c", RENDER]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    rows = [np.array(line.split(), float).reshape(2, 3) for line in out.splitlines()]
    views = [view for row in rows for view in row]
    apart = [np.abs(a - b).max() for i, a in enumerate(views) for b in views[:i]]
    assert min(apart) > 3 * EXACT, "the views cannot be told apart"
    return dict(zip(SCENES, rows, strict=True))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    features = {f"observation.images.{camera}": SIZE for camera in CAMERAS}
    folder = tmp_path_factory.mktemp("policy")
    return save_probe(folder, features, STATE_DIM, ACTION_DIM, gain=GAIN)


@pytest.fixture(scope="module")
def rounds(wire):
    return Rounds(wire.node, SCENES)


@pytest.fixture(scope="module")
def operators(wire, start_for_module):
    images = [f"images={{{', '.join(f'{camera}: {list(SIZE)}' for camera in CAMERAS)}}}"]
    for robot in SCENES:
        start_for_module(bringup.robot(robot, adapter_options=images))
    operators = {robot: Operator(wire, robot) for robot in SCENES}
    yield operators
    for operator in operators.values():
        operator.close()


def look(operators, actions):
    """Both arms do a task at once."""
    goals = {
        robot: operator.give(
            instruction="look", scene=SCENES[robot], seed=SEED, max_actions=actions
        )
        for robot, operator in operators.items()
    }
    for robot, operator in operators.items():
        result = operator.result(goals[robot])
        assert result.actions == actions, result.outcome


def check(rounds, truth, error=EXACT):
    """Every chunk is made from the pictures of its request, which show the robot's own scene."""
    for robot, views in truth.items():
        served = rounds.served(robot)
        assert len(served) >= 5
        for request, chunk in served:
            assert list(request.image_keys) == list(CAMERAS)
            saw = told(chunk, 2, GAIN)
            np.testing.assert_allclose(saw, seen(request, CAMERAS)[:, :2], atol=error)
        first = min(served, key=lambda pair: (int(pair[0].task), pair[0].round, pair[0].attempt))
        assert np.abs(told(first[1], 2, GAIN) - views[:, :2]).max() < JPEG_ERROR, robot


def test_every_robot_moves_by_its_own_pictures_also_when_they_are_fetched_again(
    policy, operators, rounds, truth, wire, start_for_module, tmp_path_factory
):
    bag = tmp_path_factory.mktemp("run") / "bag"
    paced = f"paced:latency_ms=250:{policy}"
    serving = bringup.serving(policy=paced, horizon="static:10", max_batch=1, stale_after_s=0.02)
    server = start_for_module(serving, env=ENVIRONMENT)
    recorder = start_for_module(bringup.recorder(bag))
    wire.serving_since()
    until(lambda: "recording" in recorder.output(), what="for the recorder")
    for _ in range(4):  # how often observations get old depends on what else the machine does
        look(operators, 60)
        if sum(request.attempt > 0 for request, _ in rounds.served()) >= 3:
            break
    server.stop()
    recorder.stop()
    check(rounds, truth)
    # where a picture takes longer than the 30 ms that the server waits, its round has gone already
    again = sum(request.attempt > 0 for request in rounds.asked.values())
    assert again >= 3, "no observation was fetched again"

    # the bag is replayed against the same policy, which computes the same from its pictures
    before = dict(rounds.answered)
    command = [KAIROS, "replay", bag, "--policy", policy, "--robots", "1", "--out", bag.parent]
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert rounds.answered == before  # its virtual robots have other names


def test_pictures_that_a_link_compressed_are_still_those_of_the_robot(
    policy, operators, rounds, truth, wire, start_for_module, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    port = free_ports()
    here = SimpleNamespace(there="127.0.0.1", prefix=[])
    cloud = Cloud.with_keys(here, tmp_path, f"probe={policy}")
    cloud.start(port=port)
    engine = f"cloud=tcp://127.0.0.1:{port},policy=probe,jpeg=60,size=64"
    spec = bringup.cloud_bridge(engine, edge=False, keys=str(cloud.here), horizon="static:10")
    rounds.asked.clear()
    rounds.answered.clear()
    try:
        start_for_module(spec)
        wire.serving_since()
        look(operators, 40)
        check(rounds, truth, error=JPEG_ERROR)
        assert {chunk.tier for _, chunk in rounds.served()} == {"cloud"}
    finally:
        cloud.end()
