"""ACT on an SO-101 with two VGA cameras, end to end: the policy that most owners of one train.

Real nodes and processes, LeRobot's own driver and cameras, a real (small, untrained) ACT; what is
simulated are the six motors behind the serial port and what the cameras show.
"""

import base64
import io
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import zmq
from act_folder import save_act
from picture_probe import Rounds
from PIL import Image
from wire import Operator

from bench.support.simulated_so101 import SimulatedArm
from kairos_ros.bringup.arms import arm_plan
from kairos_ros.robot.body_log import read_body_log

NAME = "desk"
SIZE = (480, 640)
LOW, HIGH = [-50.0, -50.0, -50.0, -50.0, -50.0, 20.0], [50.0, 50.0, 50.0, 50.0, 50.0, 80.0]
CHUNK = 30


class Camera:
    """A camera of LeRobot's kind `zmq`, 10 pictures a second: a bar that wanders."""

    def __init__(self, colour) -> None:
        socket = zmq.Context.instance().socket(zmq.PUB)
        self.port = socket.bind_to_random_port("tcp://127.0.0.1")
        self._left = threading.Event()

        def run() -> None:
            number = 0
            while not self._left.wait(0.1):
                number += 1
                picture = np.full((*SIZE, 3), 40, np.uint8)
                picture[:, 20 * (number % 30) : 20 * (number % 30) + 40] = colour
                buffer = io.BytesIO()
                Image.fromarray(picture).save(buffer, "JPEG", quality=90)
                encoded = base64.b64encode(buffer.getvalue()).decode()
                socket.send_string(json.dumps({"images": {"view": encoded}}))
            socket.close(0)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    @property
    def options(self) -> dict:
        where = {"type": "zmq", "server_address": "127.0.0.1", "port": self.port}
        return where | {"camera_name": "view", "width": SIZE[1], "height": SIZE[0], "fps": 10}

    def leave(self) -> None:
        self._left.set()
        self._thread.join()


@pytest.fixture(scope="module")
def cameras():
    cameras = {"front": Camera((200, 30, 30)), "wrist": Camera((30, 30, 200))}
    yield cameras
    for camera in cameras.values():
        camera.leave()


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    arm = SimulatedArm(tmp_path_factory.mktemp("arm"))
    yield arm
    arm.close()


@pytest.fixture(scope="module")
def rounds(wire):
    return Rounds(wire.node, [NAME])


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("body")


@pytest.fixture(scope="module")
def operator(start_for_module, arm, cameras, wire, rounds, logs, tmp_path_factory):
    features = {f"observation.images.{name}": SIZE for name in cameras}
    policy = save_act(tmp_path_factory.mktemp("act"), features, LOW, HIGH, CHUNK)
    options = {name: camera.options for name, camera in cameras.items()}
    more = {"calibration_dir": str(arm.port.parent), "max_blind_s": 10.0, "max_image_age_s": 10.0}
    given = {"use_sim": "false", "robot": NAME, "policy": str(policy)}
    given |= {"port": str(arm.port), "id": "so101", "horizon": "tail_agreement"}
    given["lerobot"] = json.dumps({**more, "cameras": options})
    for spec in arm_plan("so101", given):
        if spec.name == "robot":
            spec = replace(spec, parameters={**spec.parameters, "body_log": str(logs)})
        if spec.name == "serving":  # there is one arm: no warm-up for sixteen
            spec = replace(spec, parameters={**spec.parameters, "max_batch": 1})
        start_for_module(spec)
    wire.serving_since()
    operator = Operator(wire, NAME)
    yield operator
    operator.close()


@pytest.mark.parametrize(
    ("horizon", "reason"),
    [("", "previous chunk"), ("static:12", f"static 12 of {CHUNK}")],
    ids=["tail_agreement", "static"],
)
def test_the_arm_does_what_act_says(operator, rounds, logs, horizon, reason):
    result = operator.result(
        operator.give(instruction="reach", max_actions=60, horizon_policy=horizon)
    )
    assert (result.outcome, result.actions) == ("max_actions", 60)
    served = rounds.of_newest(result.rounds)
    for request, chunk in served:
        assert request.horizon_policy == horizon
        assert sorted(request.image_keys) == ["front", "wrist"]
        assert (chunk.chunk_size, chunk.action_dim) == (CHUNK, 6)
        assert reason in chunk.horizon_reason
    said = np.concatenate([np.reshape(chunk.actions, (-1, 6)) for _, chunk in served])
    assert ((said > LOW) & (said < HIGH)).all()
    (log,) = logs.iterdir()
    did = [event.action for event in read_body_log(log) if event.kind == "act"]
    assert np.abs(said - did[-1]).max(axis=1).min() < 1e-3  # it got there, at the guard's pace
    assert np.abs(np.subtract(did[0], did[-1])).max() > 5.0  # from where it was folded


def test_a_horizon_that_judges_by_sampler_steps_is_refused_with_what_to_use(operator):
    began = time.monotonic()
    result = operator.result(
        operator.give(instruction="reach", max_actions=60, horizon_policy="confidence")
    )
    assert result.actions == 0
    assert "use static:H, tail_agreement or calibrated" in result.outcome
    assert time.monotonic() - began < 20.0
