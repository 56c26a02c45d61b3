"""Simulated arms without ROS: trajectories, controller, servos, task, cameras' frames."""

import numpy as np
import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.world.controller import PositionController
from kairos_ros.lab.world.driver import SimulatedDriver
from kairos_ros.lab.world.reach import APART_M, Reach, distances, done, expert, state, state_names
from kairos_ros.lab.world.trajectory import Point, RejectedError
from kairos_ros.robot.description.arm import ARMS, arm_called, view_axes

NAMES = ("a", "b")
PERIOD_S = 0.01


def controller(start=(0.0, 0.0), velocity=100.0) -> PositionController:
    limits = np.array([(-1.0, 1.0), (-2.0, 2.0)])
    return PositionController(NAMES, limits, np.full(2, velocity), np.array(start))


def told_at(control: PositionController, until_s: float) -> np.ndarray:
    """What the servos are told after `until_s` of periods."""
    for tick in range(round(until_s / PERIOD_S)):
        last = control.setpoint(tick * PERIOD_S, PERIOD_S)
    return last


def test_a_trajectory_is_followed_in_straight_lines_and_its_end_is_held():
    control = controller()
    points = [Point(1.0, (0.5, 1.0)), Point(2.0, (0.5, -1.0))]
    control.follow(NAMES, points, 0.0, None)
    assert np.allclose(told_at(control, 0.5), (0.25, 0.5))
    control.follow(NAMES, points, 0.0, None)
    assert np.allclose(told_at(control, 10.0), (0.5, -1.0))


def test_points_with_velocities_are_joined_smoothly():
    control = controller()
    control.follow(NAMES, [Point(1.0, (0.8, 0.0), (0.0, 0.0))], 0.0, None)
    told = [control.setpoint(tick * PERIOD_S, PERIOD_S)[0] for tick in range(100)]
    assert told[49] == pytest.approx(0.4)  # halfway by symmetry
    assert told[9] == pytest.approx(0.8 * (3 * 0.1**2 - 2 * 0.1**3))  # a cubic from rest to rest


def test_joints_may_be_named_in_any_order():
    control = controller()
    control.follow(("b", "a"), [Point(0.1, (1.5, 0.5))], 0.0, None)
    assert np.allclose(told_at(control, 0.2), (0.5, 1.5))


@pytest.mark.parametrize(
    ("names", "points", "complaint"),
    [
        (("a", "c"), [Point(1.0, (0, 0))], "unknown c; missing b"),
        (("a",), [Point(1.0, (0,))], "missing b"),
        (("a", "b", "b"), [Point(1.0, (0, 0, 0))], "named twice"),
        (NAMES, [], "no points"),
        (NAMES, [Point(1.0, (0,))], "2 positions"),
        (NAMES, [Point(1.0, (0, float("nan")))], "not finite"),
        (NAMES, [Point(1.0, (0, 0)), Point(1.0, (0, 0))], "does not grow"),
        (NAMES, [Point(-1.0, (0, 0))], "does not grow"),
    ],
)
def test_what_a_trajectory_controller_rejects_changes_nothing(names, points, complaint):
    control = controller()
    control.follow(NAMES, [Point(0.1, (0.5, 0.5))], 0.0, None)
    with pytest.raises(RejectedError, match=complaint):
        control.follow(names, points, 0.0, None)
    assert np.allclose(told_at(control, 0.2), (0.5, 0.5))
    assert (control.accepted, control.rejected) == (1, 1)
    assert complaint in control.last_rejection


def test_a_trajectory_of_the_past_is_rejected_and_a_late_one_joined_where_it_is():
    control = controller()
    with pytest.raises(RejectedError, match=r"ended 4\.00 s ago"):
        control.follow(NAMES, [Point(1.0, (0.5, 0.5))], 10.0, 5.0)
    control.follow(NAMES, [Point(1.0, (0.9, 0.9)), Point(3.0, (0.5, 0.5))], 0.0, -2.0)
    assert np.allclose(told_at(control, 0.5), (0.25, 0.25))  # straight to the point still ahead


def test_a_trajectory_may_begin_later():
    control = controller()
    control.follow(NAMES, [Point(0.0, (0.0, 0.0)), Point(1.0, (0.5, 0.5))], 0.0, 1.0)
    assert np.allclose(told_at(control, 1.0), 0.0)
    control.follow(NAMES, [Point(0.0, (0.0, 0.0)), Point(1.0, (0.5, 0.5))], 0.0, 1.0)
    assert np.allclose(told_at(control, 1.5), 0.25)


def test_a_command_for_every_joint_is_wanted():
    control = controller()
    with pytest.raises(RejectedError, match=r"size \(3\)"):
        control.go_to((0, 0, 0), 0.0)
    with pytest.raises(RejectedError, match="not finite"):
        control.go_to((0, float("inf")), 0.0)
    control.rejects_all = True
    with pytest.raises(RejectedError, match="not active"):
        control.go_to((0, 0), 0.0)


def test_servos_are_told_no_more_than_the_joints_can():
    control = controller(velocity=2.0)
    control.go_to((5.0, -5.0), 0.0)
    first = control.setpoint(0.0, PERIOD_S)
    assert np.allclose(first, (0.02, -0.02))
    assert np.allclose(told_at(control, 2.0), (1.0, -2.0))
    assert control.clipped > 0


def test_joints_that_begin_beyond_their_limits_stay_until_they_are_told():
    control = controller(start=(1.4, 0.0), velocity=2.0)
    assert np.allclose(told_at(control, 0.5), (1.4, 0.0))
    control.go_to((1.4, 0.0), 0.5)
    assert np.allclose(told_at(control, 2.0), (1.0, 0.0))


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_goes_where_it_is_told_and_stays(name):
    arm = arm_called(name)
    driver = SimulatedDriver(arm)
    home = np.array(arm.home)
    span = np.minimum(home - arm.limits[:, 0], arm.limits[:, 1] - home)
    goal = home + 0.2 * span
    driver.controller.go_to(goal, 0.0)
    for _ in range(200):
        driver.tick()
    # a servo without integral part gives way under the arm's weight, as an STS3215 does
    assert np.allclose(driver.world.read().position + driver.world.sag(), goal, atol=2e-3)
    assert np.abs(driver.world.read().velocity).max() < 1e-2


@pytest.mark.parametrize("name", ARMS)
def test_the_expert_touches_every_ball(name):
    arm = arm_called(name)
    driver, reach = SimulatedDriver(arm), Reach(arm, 5)
    for _ in range(3):
        goal = reach.lay_out(driver.world)
        for _ in range(200):
            driver.act(expert(driver.world, goal), 30.0)
        assert done(driver.world), distances(driver.world)
    assert len(state(driver.world)) == len(state_names(arm))


@pytest.mark.parametrize("rate_hz", [100, 150, 200, 300, 400, 500])
def test_a_second_is_a_second_at_every_rate(rate_hz):
    driver = SimulatedDriver(arm_called("so101"), rate_hz=rate_hz)
    for _ in range(rate_hz):
        driver.tick()
    assert driver.world.time_s == pytest.approx(1.0, abs=0.002)


def test_an_arm_without_torque_sinks_and_is_held_where_it_is_when_that_is_back():
    driver = SimulatedDriver(arm_called("so101"))
    driver.torque(False)
    with pytest.raises(RejectedError, match="torque is off"):
        driver.controller.go_to(driver.world.arm.home, driver.time_s)
    before = driver.world.tip(0)
    for _ in range(20):
        driver.tick()
    assert driver.world.tip(0)[2] < before[2] - 0.01
    driver.torque(True)
    held = driver.world.read().position
    for _ in range(100):
        driver.tick()
    # to where it stood still, but for its swing and what servos give way
    assert np.abs(driver.world.read().position - held).max() < 0.2
    assert np.abs(driver.world.read().velocity).max() < 1e-2


def test_the_same_seed_lays_out_the_same_balls():
    arm = arm_called("bi_so101")
    first, again, other = (Reach(arm, seed).next_goal()[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


def test_a_new_ball_is_not_where_the_hand_is_already():
    arm = arm_called("so101")
    _, there = Reach(arm, 3).next_goal()
    world = SimulatedDriver(arm, list(there)).world
    Reach(arm, 3).lay_out(world)
    assert distances(world).max() < 0.005
    Reach(arm, 3).lay_out_away(world)
    assert distances(world).max() >= APART_M


def test_a_finger_that_mimics_another_moves_with_it():
    driver = SimulatedDriver(arm_called("franka"))
    driver.controller.go_to([*driver.world.arm.home[:7], 0.01], 0.0)
    for _ in range(200):
        driver.tick()
    fingers = [driver.world.data.joint(f"panda_finger_joint{i}").qpos[0] for i in (1, 2)]
    assert np.allclose(fingers, 0.01, atol=1e-4)


@pytest.mark.parametrize("name", ARMS)
def test_cameras_look_at_what_they_are_said_to(name):
    for view in arm_called(name).views.values():
        axes = view_axes(view)
        assert np.allclose(axes.T @ axes, np.eye(3))
        assert np.linalg.det(axes) == pytest.approx(1.0)
        assert np.allclose(np.cross(axes[:, 2], np.subtract(view.toward, view.eye)), 0.0, atol=1e-9)


def test_a_strange_arm_and_a_strange_start_are_named():
    with pytest.raises(ConfigError, match="'so100' cannot be simulated; there are so101"):
        arm_called("so100")
    with pytest.raises(ConfigError, match="start has 2 positions; so101 has 6 joints"):
        SimulatedDriver(arm_called("so101"), (0.0, 0.0))
