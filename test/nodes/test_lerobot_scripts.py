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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
pytest.importorskip("lerobot")
pytest.importorskip("metaworld")

TWIN = Path(__file__).parents[1] / "support" / "lerobot_policy_twin.py"
PLUGIN = Path(__file__).parents[2] / "lerobot_policy_kairos"
METADATA = "Metadata-Version: 2.1\nName: lerobot_policy_kairos\nVersion: 0.1.0\n"
PIXELS = 96
AHEAD = [0.0, 1.0, 0.0, 0.0]
ARM = "emulated:latency_ms=20,chunk=30,state=6,dim=6"
"""Its second action, the shoulder's lift, counts from 0 up in every chunk: a folded arm rises."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("act")
    code = (
        "import sys; from pathlib import Path; from act_scenes import save_act\n"
        f"save_act(Path(sys.argv[1]), {AHEAD}, state_dim=4, pixels={PIXELS})"
    )
    environment = os.environ | {"PYTHONPATH": python_path(TWIN.parent)}
    subprocess.run([sys.executable, "-c", code, folder], check=True, env=environment)
    return folder


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


def test_evaluated_through_a_server_a_policy_acts_as_without_and_an_arm_rises(
    policy, arm, starter_for_module, wire, tmp_path
):
    policies = [f"act={policy}", f"desk={ARM}"]
    starter_for_module.start(serving(policies=policies, horizon="static:20", max_batch=2))
    kairos = Path(sys.prefix, "bin", "kairos")
    doors = starter_for_module.run([kairos, "doors", "--listen", "127.0.0.1:0"])
    wire.serving_since()
    asked: list[ChunkRequest] = []
    wire.node.create_subscription(ChunkRequest, "/desk/chunk_request", asked.append, qos.EXCHANGE)
    folded = arm.motors("position")
    given = {
        "policy": str(policy),
        "server": address(doors),
        "robot": [
            "--robot.type=so101_follower",
            *(f"--robot.{key}={value}" for key, value in arm.options.items()),
        ],
        "folder": str(tmp_path),
    }
    site = installed(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, TWIN, json.dumps(given)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": python_path(TWIN.parents[2], PLUGIN / "src", site), "MUJOCO_GL": "egl"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)

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
