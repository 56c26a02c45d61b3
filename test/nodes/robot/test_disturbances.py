"""What a drill asks for happens where it can be seen."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SEED = 2001
"""Its first intruder stands where camera corner3 does not look: `make demo FLEET=factory SEED=2`
begins with it."""
DISTURB = f"""
import logging
from types import SimpleNamespace
import numpy as np
from kairos_ros.nodes.robot.disturbances import RobotDisturbances
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.intruder import METAWORLD_CELL, random_intruder
from kairos_ros.robot.adapters.sim.sim import SimAdapter
from kairos_ros.srv import Disturb

class Node:
    def get_logger(self):
        return logging.getLogger("robot")
    def create_service(self, kind, name, answer):
        self.answer = answer

arm, node = SimAdapter(images={{"corner3": (240, 240), "topview": (128, 128)}}), Node()
arm.reset(TaskGoal("push the puck to the target", "push-v3", 2))
print("first", arm.sees(random_intruder(np.random.default_rng({SEED}), METAWORLD_CELL)))
empty, disturbances = arm.observe().images, RobotDisturbances(node, "arm_1", arm)
for what in ("intruder", "clear"):
    request = Disturb.Request(robot="arm_1", what=what, seed={SEED})
    assert node.answer(request, SimpleNamespace(ok=False, message="")).ok
    disturbances.period()
    pictures = arm.observe().images
    print(what, *(pictures[key] != empty[key] for key in empty))
arm.close()
"""


def test_an_intruder_is_one_whom_every_camera_sees():
    # a process of its own: this one may have imported MuJoCo without a way to render
    command = [sys.executable, "-c", DISTURB]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    assert out.splitlines() == ["first False", "intruder True True", "clear False False"]
