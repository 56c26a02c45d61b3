"""LeRobot's policy type kairos against a real serving node behind real doors: what it executes, what
it tells, and what it says when something is wrong."""

import sys
from pathlib import Path

import numpy as np
import pytest
from kairos_ros.msg import RobotStatus
from openpi_robot import address
from wire import until

from kairos_ros.bringup.plan import serving

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
pytest.importorskip("lerobot")

from lerobot_policy_kairos.configuration_kairos import KairosConfig  # noqa: E402
from lerobot_policy_kairos.modeling_kairos import KairosPolicy  # noqa: E402

POLICY = "emulated:latency_ms=20+1b,chunk=10,state=2,dim=2,steps=2,images=front@24x32"
"""Its actions are (first number of the state that they were made from, index in the chunk)."""
HORIZON = 6


@pytest.fixture(scope="module")
def server(starter_for_module, wire):
    node = starter_for_module.start(serving(policy=POLICY, horizon=f"static:{HORIZON}"))
    wire.serving_since()
    return node


@pytest.fixture(scope="module")
def where(server, starter_for_module) -> str:
    program = Path(sys.prefix, "bin", "kairos")
    return address(starter_for_module.run([program, "doors", "--listen", "127.0.0.1:0"]))


@pytest.fixture
def make(where):
    made = []

    def policy(robot: str, **options) -> KairosPolicy:
        options = {"server": where, "control_rate_hz": 50.0} | options
        made.append(KairosPolicy(KairosConfig(robot=robot, **options)))
        return made[-1]

    yield policy
    for one in made:
        one.close()


def batch(*states: float, task: str = "pick") -> dict:
    rows = len(states)
    return {
        "observation.state": torch.tensor([[state, 0.5] for state in states]),
        "observation.images.front": torch.zeros(rows, 3, 24, 32),
        "task": [task] * rows,
    }


def test_in_lockstep_a_chunk_is_made_from_the_observation_that_was_there_when_it_was_asked_for(
    make, wire
):
    policy = make("arm_1", synchronous=True)
    actions = np.concatenate([policy.select_action(batch(float(n))).numpy() for n in range(14)])
    assert actions[:, 1].tolist() == [*range(HORIZON), *range(HORIZON), 0, 1]
    assert actions[:, 0].tolist() == [0.0] * HORIZON + [6.0] * HORIZON + [12.0] * 2
    assert until(lambda: wire.status_of("arm_1")).state == RobotStatus.RUNNING
