"""Pictures end to end on an arm that LeRobot drives: what each camera sees moves the arm.

Real nodes, LeRobot's own driver and cameras; the policy names its cameras otherwise, and its saved
`rename_map` says how.
"""

import base64
import io
import json
import threading
import time
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
import zmq
from picture_probe import ENVIRONMENT, JPEG_ERROR, Rounds, save_probe, seen, told
from PIL import Image
from wire import Operator, until

from bench.support.simulated_so101 import SimulatedArm
from kairos_ros.bringup.arms import arm_plan
from kairos_ros.robot.body_log import read_body_log

NAME = "desk"
SIZE = (48, 64)
GAIN = 40.0
CYCLE, FRAME_S = 200, 0.04
"""The green of a camera counts its pictures: 25 a second, anew every 8 s."""
OLDEST_S = 2.0
"""Age of a picture when its actions come, on a busy machine: the median, since anything there may
stand still for as long."""


def now_shown() -> float:
    """What green shows now, in frames."""
    return time.monotonic() / FRAME_S % CYCLE


class Camera:
    """A camera of LeRobot's kind `zmq` with a colour of its own: red or blue, and time in green."""

    def __init__(self, red: int, blue: int) -> None:
        socket = zmq.Context.instance().socket(zmq.PUB)
        self.port = socket.bind_to_random_port("tcp://127.0.0.1")
        self.size = {"width": SIZE[1], "height": SIZE[0], "fps": 25, "camera_name": "view"}
        self._left = threading.Event()

        def run() -> None:
            while not self._left.wait(FRAME_S):
                # LeRobot's image server encodes RGB as OpenCV's BGR, and its camera decodes it so
                colour = (blue, int(now_shown()), red)
                buffer = io.BytesIO()
                Image.new("RGB", SIZE[::-1], colour).save(buffer, "JPEG", quality=95)
                encoded = base64.b64encode(buffer.getvalue()).decode()
                socket.send_string(json.dumps({"images": {"view": encoded}}))
            socket.close(0)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def options(self) -> dict:
        return {"type": "zmq", "server_address": "127.0.0.1", "port": self.port, **self.size}

    def leave(self) -> None:
        self._left.set()
        self._thread.join()


@pytest.fixture(scope="module")
def cameras():
    cameras = {"front": Camera(red=200, blue=0), "wrist": Camera(red=0, blue=200)}
    yield cameras
    for camera in cameras.values():
        camera.leave()


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    arm = SimulatedArm(tmp_path_factory.mktemp("arm"))
    yield arm
    arm.close()


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("body")


@pytest.fixture(scope="module")
def rounds(wire):
    return Rounds(wire.node, [NAME])


@pytest.fixture(scope="module")
def operator(start_for_module, arm, cameras, wire, rounds, logs, tmp_path_factory):
    features = {f"observation.images.camera{i}": SIZE for i in (1, 2)}
    names = dict(zip(("front", "wrist"), features, strict=True))
    renamed = {f"observation.images.{camera}": feature for camera, feature in names.items()}
    folder = tmp_path_factory.mktemp("policy")
    policy = save_probe(folder, features, 6, 6, gain=GAIN, rename_map=renamed)
    options = {name: camera.options for name, camera in cameras.items()}
    more = {"calibration_dir": str(arm.port.parent), "max_blind_s": 10.0, "max_image_age_s": 5.0}
    given = {"use_sim": "false", "robot": NAME, "policy": str(policy), "horizon": "static:5"}
    given |= {"port": str(arm.port), "id": "so101"}
    given["lerobot"] = json.dumps({**more, "cameras": options})
    for spec in arm_plan("so101", given):
        if spec.name == "robot":
            spec = replace(spec, parameters={**spec.parameters, "body_log": str(logs)})
        start_for_module(spec, env=ENVIRONMENT)
    wire.serving_since()
    operator = Operator(wire, NAME)
    yield operator
    operator.close()


def test_the_arm_does_what_its_cameras_see(operator, rounds, logs):
    result = operator.result(operator.give(instruction="look", max_actions=60))
    assert (result.outcome, result.actions) == ("max_actions", 60)
    served = until(lambda: len(pairs := rounds.served()) >= 10 and pairs, what="for the rounds")
    for request, chunk in served:
        assert list(request.image_keys) == ["front", "wrist"]
        front, wrist = told(chunk, 2, GAIN)
        np.testing.assert_allclose(front[[0, 2]], [200 / 255, 0], atol=JPEG_ERROR)
        np.testing.assert_allclose(wrist[[0, 2]], [0, 200 / 255], atol=JPEG_ERROR)
        np.testing.assert_allclose([front, wrist], seen(request, ["front", "wrist"]), atol=1e-3)

    (log,) = logs.iterdir()
    actions = [event.action for event in read_body_log(log) if event.kind == "act"]
    wanted = np.array([200 / 255, np.nan, 0, 0, np.nan, 200 / 255]) * GAIN
    fixed = np.isfinite(wanted)
    np.testing.assert_allclose(actions[-1][fixed], wanted[fixed], atol=GAIN * JPEG_ERROR)


def test_pictures_are_those_of_now(operator, rounds):
    ages, before = [], len(rounds.answered)
    running = operator.give(instruction="look", max_actions=120)
    while not running.done():
        if len(rounds.answered) > before:
            before = len(rounds.answered)
            _, chunk = rounds.served()[-1]
            shown = told(chunk, 2, GAIN)[:, 1] * 255
            ages.extend((now_shown() - shown) % CYCLE * FRAME_S)
        time.sleep(0.01)
    assert operator.result(running).actions == 120
    ages = [age if age < CYCLE * FRAME_S / 2 else 0.0 for age in ages]  # a frame ahead: rounding
    assert len(ages) >= 10, "of two cameras"
    assert median(ages) < OLDEST_S, ages
