"""lerobot-eval and lerobot-rollout of policy type kairos: the same actions as without a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kairos_ros.msg import ChunkRequest
from openpi_robot import address
from wire import until

from bench.support.simulated_so101 import SimulatedArm
from kairos_ros.bringup.plan import serving
from kairos_ros.nodes import qos

pytestmark = pytest.mark.slow
pytest.importorskip("lerobot")
pytest.importorskip("metaworld")

TWIN = Path(__file__).parents[2] / "support" / "policies" / "lerobot_policy_twin.py"
PLUGIN = Path(__file__).parents[3] / "lerobot_policy_kairos"
KAIROS = Path(sys.prefix, "bin", "kairos")
METADATA = "Metadata-Version: 2.1\nName: lerobot_policy_kairos\nVersion: 0.1.0\n"
ARM = "emulated:latency_ms=20,chunk=30,state=6,dim=6"
"""Its second action, the shoulder's lift, counts from 0 up in every chunk: a folded arm rises."""


@pytest.fixture
def arm(tmp_path):
    arm = SimulatedArm(tmp_path)
    yield arm
    arm.close()


def python_path(*folders: Path) -> str:
    return os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])


def installed(folder: Path) -> Path:
    """Where LeRobot finds the plugin's distribution, installed or not."""
    info = folder / "lerobot_policy_kairos-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    return folder


@pytest.fixture
def twin(tmp_path):
    """Has saved its policy in `tmp_path/act`."""
    paths = TWIN.parents[3], PLUGIN / "src", installed(tmp_path / "site")
    log = tmp_path / "twin.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, TWIN, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": python_path(*paths), "MUJOCO_GL": "egl", "OMP_NUM_THREADS": "1"},
        )
    assert process.stdout.readline() == "saved\n", log.read_text()[-4000:]
    yield process
    process.kill()
    process.wait()


def test_evaluated_through_a_server_a_policy_acts_as_without_and_an_arm_rises(
    twin, arm, starter_for_module, wire, tmp_path
):
    policies = [f"act={tmp_path / 'act'}", f"desk={ARM}"]
    starter_for_module.start(serving(policies=policies, horizon="static:20", max_batch=2))
    doors = starter_for_module.run([KAIROS, "doors", "--listen", "127.0.0.1:0"])
    wire.serving_since()
    asked: list[ChunkRequest] = []
    wire.node.create_subscription(ChunkRequest, "/desk/chunk_request", asked.append, qos.EXCHANGE)
    chunked: list[ChunkRequest] = []
    wire.node.create_subscription(
        ChunkRequest, "/rtc_desk/chunk_request", chunked.append, qos.EXCHANGE
    )
    folded = arm.motors("position")
    robot = ["--robot.type=so101_follower"]
    robot += [f"--robot.{key}={value}" for key, value in arm.options.items()]
    given = json.dumps({"server": address(doors), "robot": robot})
    said, _ = twin.communicate(given + "\n")
    assert twin.returncode == 0, (tmp_path / "twin.log").read_text()[-4000:]
    told = json.loads(said)

    direct, served = told["direct"], told["served"]
    assert direct["success"] == served["success"] == [True, False]
    for there, here in zip(direct["actions"], served["actions"], strict=True):
        assert len(there) == len(here) > 10
        np.testing.assert_allclose(here, there, atol=1e-4)
    assert np.ptp(served["actions"][1], axis=0).max() > 0.01, "it acts on what it sees"

    packages = {".".join(name.split(".")[:2]) for name in told["modules"]}
    assert packages == {"kairos_ros", "kairos_ros.core", "kairos_ros.transport"}

    assert arm.motors("position")["shoulder_lift"] > folded["shoulder_lift"] + 200
    executing = until(lambda: [r for r in asked if r.execution.actions_remaining])
    assert {(r.instruction, r.execution.inferred) for r in executing} == {("rise", False)}

    # LeRobot's engine for real-time chunking: what is left of a chunk is told, and committed
    moving = [r for r in chunked if r.round > 2]
    assert len(moving) >= 2
    assert not [r.round for r in moving if r.execution.inferred or r.execution.holding]
    for request in moving:
        doing = request.execution
        assert 0 < doing.actions_remaining <= 16
        assert doing.chunk_index + doing.actions_remaining <= 30
        rises = np.reshape(request.committed, (request.committed_actions, 6))[:, 1]
        begun = doing.chunk_index
        assert rises.tolist() == list(range(begun, begun + request.committed_actions))
    assert [r for r in moving if r.committed_actions]
