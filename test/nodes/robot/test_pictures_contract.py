"""Pictures end to end on an arm behind ROS 2 drivers: rendered by the driver, named by a contract.

The policy calls one of the cameras otherwise, and parameter `camera_map` says how.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from picture_probe import ENVIRONMENT, JPEG_ERROR, Rounds, mean_colour, save_probe, seen, told
from sensor_msgs.msg import CompressedImage
from wire import Operator, until

from kairos_ros.bringup.arms import arm_plan
from kairos_ros.nodes import qos
from kairos_ros.robot.adapters.contract.contract_file import contract_path

ROBOT, DRIVER = "so101_1", "so101"
SIZE = (120, 160)
GAIN = 20.0
CAMERAS = ("front", "wrist")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def contract(folder):
    """The shipped one for policies of LeRobot, with smaller pictures, on a machine that is busy."""
    text = contract_path("so101_real").read_text()
    small = text.replace(
        "height_px: 480, width_px: 640", f"height_px: {SIZE[0]}, width_px: {SIZE[1]}"
    )
    assert small != text
    small = re.sub(r"stale_after_s: [\d.]+", "stale_after_s: 4.0", small)
    path = folder / "contract.yaml"
    path.write_text(small)
    return path


@pytest.fixture(scope="module")
def policy(folder):
    features = {f"observation.images.{camera}": SIZE for camera in ("front", "hand")}
    return save_probe(folder / "policy", features, 6, 6, gain=GAIN)


def test_the_check_says_without_a_server_what_does_not_fit(contract, policy, start_for_module):
    check = [Path(sys.prefix, "bin", "kairos"), "robot", "check", contract, "--policy", policy]
    run = start_for_module.__self__.run
    refused, fits = run(check), run([*check, "--camera-map", "wrist=hand"])
    assert refused.process.wait(60) == 2
    assert 'write robot parameter camera_map: ["wrist=hand"]' in refused.output()
    assert fits.process.wait(60) == 0, fits.output()


@pytest.fixture(scope="module")
def shown(wire):
    """Mean colours of every picture that the driver has published, by camera."""
    shown = {camera: [] for camera in CAMERAS}
    for camera in CAMERAS:
        wire.node.create_subscription(
            CompressedImage,
            f"/{DRIVER}/camera/{camera}/compressed",
            lambda message, camera=camera: shown[camera].append(mean_colour(bytes(message.data))),
            qos.SENSOR,
        )
    return shown


@pytest.fixture(scope="module")
def rounds(wire):
    return Rounds(wire.node, [ROBOT])


def plan(contract, policy, **parameters):
    given = {"contract": str(contract), "policy": str(policy), "cameras": "front,wrist"}
    specs = arm_plan("so101", given | {"horizon": "static:10"})
    more = {"robot": parameters, "driver": {"camera_rate_hz": 10.0}}
    return [
        replace(spec, parameters={**spec.parameters, **more.get(spec.name, {})}) for spec in specs
    ]


def test_a_driver_s_cameras_reach_the_policy_and_move_the_arm(
    contract, policy, wire, rounds, shown, start_for_module
):
    for spec in plan(contract, policy, camera_map=["wrist=hand"]):
        start_for_module(spec, env=ENVIRONMENT)
    wire.serving_since()
    operator = Operator(wire, ROBOT)
    until(lambda: all(shown.values()), what="for the driver's pictures")
    front, wrist = (shown[camera][-1] for camera in CAMERAS)
    assert np.abs(front - wrist).max() > 3 * JPEG_ERROR, "the views cannot be told apart"

    result = operator.result(operator.give(instruction="look", max_actions=60))
    operator.close()
    assert result.actions == 60, result.outcome
    served = until(lambda: len(pairs := rounds.served()) >= 5 and pairs, what="for the rounds")
    for request, chunk in served:
        assert list(request.image_keys) == ["front", "hand"]
        saw = told(chunk, 2, GAIN)
        np.testing.assert_allclose(saw, seen(request, ["front", "hand"]), atol=1e-3)
        for camera, colour in zip(CAMERAS, saw, strict=True):
            other = CAMERAS[camera == "front"]
            own = min(np.abs(colour - picture).max() for picture in shown[camera])
            foreign = min(np.abs(colour - picture).max() for picture in shown[other])
            assert own < JPEG_ERROR, camera
            assert foreign > own, camera
