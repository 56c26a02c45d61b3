"""Pictures of a simulated cell as the demo's robots take them, from scenes that trained nothing."""

import functools
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

SCRIPT = """
import sys
import numpy as np
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.intruder import METAWORLD_CELL, random_hand, random_person
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES, expert
from kairos_ros.robot.adapters.sim.sim import SimAdapter

camera, px, scene, seed = "corner3", 240, "push-v3", 1_700_000
arm = SimAdapter(images={camera: (px, px)})
goal = TaskGoal(SCENES[scene], scene, seed)
shots = {}

def shoot(name, body=()):
    arm.show(body)
    shots[name] = np.frombuffer(arm.observe().images[camera], np.uint8)

def drive(steps):
    for _ in range(steps):
        arm.act(np.clip(teacher.get_action(arm._obs), -1, 1).astype(np.float32))

arm.reset(goal)
teacher = expert(scene)
drive(10)
shoot("empty")
shoot("hand", random_hand(np.random.default_rng(5), METAWORLD_CELL))
shoot("person", random_person(np.random.default_rng(8), METAWORLD_CELL))
shoot("empty_again")
arm.knock(np.array([-4.0, 1.0, 2.0]))
drive(40)
shoot("failed")
arm.reset(goal)
while not arm.succeeded():
    drive(1)
drive(15)
shoot("done")
np.savez(sys.argv[1], **shots)
"""


@functools.cache
def cell_pictures() -> dict[str, np.ndarray]:
    """Name -> uint8 [240, 240, 3]: empty, hand, person, empty_again, failed, done.

    Rendered in a process of its own: MuJoCo chooses how to render when it is imported.
    """
    pytest.importorskip("metaworld")
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shots.npz")
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(path)]
        env = os.environ | {"MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")}
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
        if not path.exists():
            if "EGL" in run.stderr:
                pytest.skip("no EGL here")
            raise AssertionError(run.stderr)
        with np.load(path) as shots:
            return {n: np.asarray(Image.open(io.BytesIO(s.tobytes()))) for n, s in shots.items()}
