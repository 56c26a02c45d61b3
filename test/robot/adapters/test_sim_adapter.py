"""The simulated robot body keeps the adapter's promises."""

import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest

pytest.importorskip("metaworld")

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import TaskState
from kairos_ros.robot.adapter import RobotAdapter, TaskGoal
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES, expert, policy_state
from kairos_ros.robot.adapters.sim.sim import (
    SimAdapter,
    SimulationError,
    gymnasium_body,
    metaworld_body,
)

pytestmark = pytest.mark.slow

LEFT = np.array([-1.0, 0.0, 0.0, 1.0], np.float32)


@pytest.fixture(scope="module")
def arm():
    adapter = SimAdapter()
    yield adapter
    adapter.close()


def drive(arm, goal, steps=30):
    arm.reset(goal)
    for _ in range(steps):
        arm.act(LEFT)
    return arm.observe().state


def test_it_is_a_robot_adapter(arm):
    assert isinstance(arm, RobotAdapter)


@pytest.mark.parametrize("scene", SCENES)
def test_the_same_seed_is_the_same_episode_also_in_a_reused_environment(arm, scene):
    goal = TaskGoal(SCENES[scene], scene, seed=11)
    first = drive(arm, goal)
    drive(arm, TaskGoal(SCENES[scene], scene, seed=12))
    again = drive(arm, goal)
    fresh = SimAdapter()
    elsewhere = drive(fresh, goal)
    fresh.close()
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, elsewhere)


def test_another_seed_is_another_scene(arm):
    arm.reset(TaskGoal("", "push-v3", seed=1))
    one = arm.observe().state
    arm.reset(TaskGoal("", "push-v3", seed=2))
    assert np.abs(arm.observe().state - one).max() > 0.01


def test_the_policy_sees_where_the_goal_is(arm):
    arm.reset(TaskGoal("", "reach-v3", seed=1))
    state = arm.observe().state
    np.testing.assert_array_equal(state, arm.state())
    assert state.dtype == np.float32
    assert state.shape == (arm.spec.state_dim,)
    assert np.abs(state[36:39]).max() > 0.1


def test_hold_keeps_the_arm_and_its_gripper_where_they_are(arm):
    drive(arm, TaskGoal("", "pick-place-v3", seed=3), steps=20)
    for _ in range(20):
        arm.hold()
    settled = arm.observe().state[:4]
    for _ in range(200):
        arm.hold()
    np.testing.assert_allclose(arm.observe().state[:4], settled, atol=2e-3)
    assert settled[3] < 0.9  # the gripper that the last action closed is still closed


def test_a_waiting_arm_outlives_meta_worlds_step_limit(arm):
    arm.reset(TaskGoal("", "reach-v3", seed=4))
    for _ in range(600):
        arm.hold()
    assert arm.succeeded() is False


def test_success_stays_true_until_the_next_reset(arm):
    goal = TaskGoal(SCENES["reach-v3"], "reach-v3", seed=5)
    arm.reset(goal)
    teacher = expert("reach-v3")
    while not arm.succeeded():
        arm.act(teacher.get_action(arm._obs).clip(-1, 1))
    for _ in range(40):
        arm.act(LEFT)
    assert arm.succeeded() is True
    arm.reset(goal)
    assert arm.succeeded() is False


def test_a_simulator_knows_whether_a_task_is_ongoing_done_or_lost(arm):
    goal = TaskGoal(SCENES["push-v3"], "push-v3", seed=5)
    arm.reset(goal)
    assert arm.task_state() is TaskState.ONGOING
    arm.knock(np.array([-4.0, 1.0, 2.0]))
    for _ in range(40):
        arm.hold()
    assert arm.task_state() is TaskState.FAILED
    arm.reset(goal)
    teacher = expert("push-v3")
    while not arm.succeeded():
        arm.act(np.clip(teacher.get_action(arm._obs), -1, 1).astype(np.float32))
    assert arm.task_state() is TaskState.DONE


def test_a_nan_action_is_refused_and_the_scene_goes_on(arm):
    arm.reset(TaskGoal("", "reach-v3", seed=6))
    with pytest.raises(SimulationError, match="finite"):
        arm.act(np.full(4, np.nan, np.float32))
    arm.act(LEFT)
    assert np.isfinite(arm.observe().state).all()


def test_diverged_physics_is_an_error_and_a_reset_repairs_it(arm):
    goal = TaskGoal("", "push-v3", seed=7)
    arm.reset(goal)
    arm._env.data.qvel[:] = 1e12
    with pytest.raises(SimulationError, match="diverged"):
        arm.act(LEFT)
    arm.reset(goal)
    arm.act(LEFT)
    assert np.isfinite(arm.observe().state).all()


def test_what_the_arm_knows_of_itself_has_no_object_and_no_goal():
    arm = SimAdapter(metaworld_body(proprioception=True))
    assert arm.spec.state_dim == 8
    arm.reset(TaskGoal("", "push-v3", seed=3))
    before = arm.observe().state
    arm.act(LEFT)
    after = arm.observe().state
    np.testing.assert_allclose(after[4:7], after[:3] - before[:3], atol=1e-6)
    whole = policy_state(arm._obs)
    np.testing.assert_array_equal(after, whole[[0, 1, 2, 3, 18, 19, 20, 21]])
    for _ in range(60):  # it knows the way home from there, too
        action = arm.toward_safe_state()
        if action is None:
            break
        arm.act(action)
    assert np.linalg.norm(arm.observe().state[:3] - before[:3]) < 0.03
    arm.close()


def test_a_goal_is_marked_where_it_is_before_anything_moves(arm):
    for seed in (1, 2):
        arm.reset(TaskGoal("", "reach-v3", seed=seed))
        marker = arm.environment.data.site("goal").xpos
        np.testing.assert_array_equal(marker, arm._obs[36:39])


def test_an_unknown_scene_names_the_known_ones(arm):
    with pytest.raises(ConfigError, match="drawer-open-v3"):
        arm.reset(TaskGoal("", "make-coffee"))


def test_any_gymnasium_environment_with_a_vector_observation_is_a_body():
    arm = SimAdapter(gymnasium_body("MountainCarContinuous-v0"))
    assert (arm.spec.state_dim, arm.spec.action_dim) == (2, 1)
    arm.reset(TaskGoal("drive up", seed=1))
    first = arm.observe().state
    arm.reset(TaskGoal("drive up", seed=1))
    np.testing.assert_array_equal(arm.observe().state, first)
    for _ in range(1100):  # its own limit is 999 steps
        arm.hold()
    arm.close()


def test_an_environment_without_vectors_is_refused_at_once():
    with pytest.raises(ConfigError, match="Box vectors"):
        gymnasium_body("CartPole-v1")


def test_a_camera_shows_the_arm_moving():
    # In a process of its own: MuJoCo chooses how to render when it is imported.
    script = """
import sys, numpy as np
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.sim import SimAdapter
arm = SimAdapter(images={"corner2": (96, 128)})
arm.reset(TaskGoal("", "reach-v3", seed=1))
shots = [arm.observe().images["corner2"]]
for _ in range(30):
    arm.act(np.array([-1, 0, 0, 1], np.float32))
shots.append(arm.observe().images["corner2"])
sys.stdout.write(shots[0].hex() + " " + shots[1].hex())
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    if run.returncode and "EGL" in run.stderr:
        pytest.skip("no EGL here")
    from PIL import Image

    before, after = (
        np.asarray(Image.open(BytesIO(bytes.fromhex(shot))), np.int16)
        for shot in run.stdout.split()[-2:]
    )
    assert before.shape == (96, 128, 3)
    assert np.abs(after - before).max() > 50


def test_the_robot_side_imports_neither_torch_nor_the_simulator():
    heavy = "{'torch', 'metaworld', 'mujoco'}"
    check = f"import sys, kairos_ros.robot.adapters.sim.sim; print({heavy} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
