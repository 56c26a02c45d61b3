"""Bodies drawn into a cell: seen, reaching in, and never felt by the physics."""

import numpy as np
import pytest
from judge_pictures import cell_pictures

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.intruder import (
    METAWORLD_CELL,
    capsule,
    person,
    random_hand,
    random_intruder,
    random_look,
    random_person,
    shifted,
)
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.robot.adapters.sim.sim import SimAdapter, gymnasium_body
from kairos_ros.robot.adapters.sim.sim_cameras import RenderedFrame

SEEDS = range(50)


def ends(part):
    axis = part.turn[:, 2] * part.size[2]
    return part.at - axis, part.at + axis


def test_a_capsule_spans_its_two_ends():
    start, end = np.array([0.1, 0.2, 0.3]), np.array([0.4, -0.2, 0.9])
    low, high = ends(capsule(start, end, 0.05, (1, 0, 0, 1)))
    np.testing.assert_allclose(low, start, atol=1e-12)
    np.testing.assert_allclose(high, end, atol=1e-12)


@pytest.mark.parametrize("make", [random_hand, random_person])
def test_rotations_are_rotations_and_sizes_are_positive(make):
    for seed in SEEDS:
        for part in make(np.random.default_rng(seed), METAWORLD_CELL):
            np.testing.assert_allclose(part.turn @ part.turn.T, np.eye(3), atol=1e-9)
            assert np.linalg.det(part.turn) == pytest.approx(1)
            assert (part.size > 0).all()
            assert np.isfinite(part.at).all()
            assert all(0 <= c <= 1 for c in part.rgba)


def test_a_hand_is_over_the_table_and_its_arm_comes_from_outside():
    cell = METAWORLD_CELL
    outside = 0
    for seed in SEEDS:
        *hand, upper = random_hand(np.random.default_rng(seed), cell)
        palm = hand[2].at
        assert np.linalg.norm(palm - np.clip(palm, cell.low, cell.high)) < 0.05, seed
        outside += not cell.holds(max(ends(upper), key=lambda p: np.abs(p - hand[2].at).sum()))
    assert outside > 0.6 * len(SEEDS)


def test_a_person_stands_on_the_floor_beside_the_table_and_is_as_tall_as_asked():
    cell = METAWORLD_CELL
    for seed in SEEDS:
        body = random_person(np.random.default_rng(seed), cell)
        low, _ = ends(body[0])
        assert low[2] == pytest.approx(cell.floor_m + 0.05)
        assert not cell.holds(np.array([*low[:2], 0.1]))
    feet = np.array([0.0, 2.0, cell.floor_m])
    body = person(feet, np.array([0.0, -1.0]), random_look(np.random.default_rng(0)), height_m=1.8)
    top = max(p.at[2] + p.size[2] for p in body if p.kind == "ellipsoid") - cell.floor_m
    assert top == pytest.approx(1.8, abs=0.08)  # with hair


def test_the_same_seed_is_the_same_intruder_and_it_can_walk():
    one, two = (random_intruder(np.random.default_rng(3), METAWORLD_CELL) for _ in range(2))
    by = np.array([0.5, 0.0, 0.0])
    for a, b, moved in zip(one, two, shifted(one, by), strict=True):
        np.testing.assert_array_equal(a.at, b.at)
        np.testing.assert_allclose(moved.at, a.at + by)


@pytest.mark.slow
def test_a_body_appears_in_the_picture_and_leaves_no_trace_of_itself():
    pictures = {name: image.astype(int) for name, image in cell_pictures().items()}
    assert (np.abs(pictures["hand"] - pictures["empty"]).max(-1) > 24).mean() > 0.004
    assert (np.abs(pictures["person"] - pictures["empty"]).max(-1) > 24).mean() > 0.004
    np.testing.assert_array_equal(pictures["empty"], pictures["empty_again"])


@pytest.mark.slow
def test_the_physics_does_not_feel_it():
    def drive(show):
        arm = SimAdapter()
        arm.reset(TaskGoal(SCENES["push-v3"], "push-v3", seed=4))
        if show:
            arm.show(random_person(np.random.default_rng(0), METAWORLD_CELL))
        for _ in range(20):
            arm.act(np.array([0.5, 0.5, -1.0, 0.0], np.float32))
        state = arm.state()
        arm.close()
        return state

    np.testing.assert_array_equal(drive(True), drive(False))


def test_a_knock_moves_the_object_and_nothing_else_at_once():
    arm = SimAdapter()
    arm.reset(TaskGoal(SCENES["push-v3"], "push-v3", seed=4))
    for _ in range(5):
        arm.hold()
    before = arm.state()
    arm.knock(np.array([3.0, 0.0, 1.0]))
    np.testing.assert_array_equal(arm.state(), before)
    for _ in range(30):
        arm.hold()
    assert np.linalg.norm(arm.state()[4:7] - before[4:7]) > 0.2
    arm.close()


def test_a_scene_without_a_loose_object_cannot_be_knocked():
    arm = SimAdapter()
    arm.reset(TaskGoal(SCENES["drawer-open-v3"], "drawer-open-v3", seed=4))
    with pytest.raises(ConfigError, match="loose"):
        arm.knock(np.array([1.0, 0.0, 0.0]))
    arm.close()
    other = SimAdapter(gymnasium_body("MountainCarContinuous-v0"))
    other.reset(TaskGoal("", seed=1))
    with pytest.raises(ConfigError, match="no object to knock"):
        other.knock(np.array([1.0, 0.0, 0.0]))
    other.close()


def test_an_environment_that_renders_itself_cannot_show_a_body():
    class Env:
        render_mode = "rgb_array"

    cameras = RenderedFrame(Env(), {"top": (8, 8)})
    cameras.show(())
    with pytest.raises(ConfigError, match="renders itself"):
        cameras.show(random_hand(np.random.default_rng(0), METAWORLD_CELL))
