"""Horizons grow where engines are short, where that costs least success, and shrink again."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_ros.core.calibration import HorizonCalibration, HorizonPlan, StaticHorizons
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.load_horizon import (
    HorizonCurve,
    LoadHorizon,
    TaskLoad,
    choose_floors,
    horizon_curves,
    successes_per_s,
)

EASY = HorizonCurve((5, 10, 50), (1.0, 1.0, 1.0), 100)
HARD = HorizonCurve((5, 10, 50), (1.0, 0.9, 0.4), 100)
LADDER = (5, 10, 20, 50)


def load(robots: int, curve: HorizonCurve | None, horizon: float = 5) -> TaskLoad:
    """No delay, ten actions per second, engines that do ten rounds per second."""
    return TaskLoad(robots, horizon, 0, 0.1, 0.1, curve)


def test_there_is_no_floor_while_the_engines_do_what_is_asked_for() -> None:
    # 4 robots with 2 rounds/s each: 8 of 10
    assert choose_floors([load(2, EASY), load(2, HARD)], 0.9) == [0, 0]


def test_horizons_grow_first_where_that_costs_no_success() -> None:
    # 6 robots ask for 12 of 10; with 50 actions, 3 easy ones ask for 0.6 and the hard ones for 6
    assert choose_floors([load(3, EASY), load(3, HARD)], 0.9) == [50, 0]


def test_they_grow_where_it_costs_success_as_far_as_more_tasks_are_worth_it() -> None:
    # 20 hard robots ask for 40 rounds/s of 9. With 5: 45 actions/s · 1.0; with 10: 90 · 0.9;
    # with 50: 200 · 0.4, no limit. 81 is the most.
    assert choose_floors([load(20, HARD)], 0.9) == [10]
    assert successes_per_s([load(20, HARD)], [10], 0.9) == pytest.approx(81 / 100)


def test_a_floor_is_above_what_the_policy_allows() -> None:
    assert choose_floors([load(30, EASY, horizon=50)], 0.9) == [0]


def test_a_kind_that_was_not_calibrated_is_left_alone() -> None:
    assert choose_floors([load(30, None), load(3, EASY)], 0.9) == [0, 50]


def test_floors_fall_again_but_not_with_every_robot() -> None:
    horizon = LoadHorizon()
    assert horizon.review({"a": load(4, EASY)}) == {"a": 0}
    assert horizon.review({"a": load(5, EASY)}) == {"a": 50}  # 10 of 9
    between = {"a": TaskLoad(1, 5, 0, 0.1, 0.43, EASY)}  # 0.86: below 0.9, above 0.81
    assert horizon.review(between) == {"a": 50}
    assert horizon.review({"a": load(4, EASY)}) == {"a": 0}
    assert horizon.review(between) == {"a": 0}, "not begun again"


CURVES = st.builds(
    lambda falls, actions: HorizonCurve(LADDER, tuple(sorted(falls, reverse=True)), actions),
    st.lists(st.floats(0.3, 1), min_size=4, max_size=4),
    st.floats(30, 300),
)
LOADS = st.lists(
    st.builds(
        TaskLoad,
        st.integers(1, 20), st.floats(5, 20), st.floats(0, 6), st.just(1 / 30),
        st.just(0.02), CURVES,
    ),
    min_size=1, max_size=3,
)  # fmt: skip


def executed(loads: list[TaskLoad], floors: list[int]) -> list[float]:
    return [max(one.horizon, floor) for one, floor in zip(loads, floors, strict=True)]


@settings(deadline=None)
@given(LOADS)
def test_no_common_floor_is_better_and_neither_is_none(loads: list[TaskLoad]) -> None:
    ours = successes_per_s(loads, executed(loads, choose_floors(loads, 0.9)), 0.9)
    for floor in (0, *LADDER):
        fixed = successes_per_s(loads, executed(loads, [floor] * len(loads)), 0.9)
        assert ours >= fixed * (1 - 1e-6)


@settings(deadline=None)
@given(LOADS)
def test_floors_are_within_a_fifth_of_the_best_choice_for_any_curves(
    loads: list[TaskLoad],
) -> None:
    ours = successes_per_s(loads, executed(loads, choose_floors(loads, 0.9)), 0.9)
    every = product((0, *LADDER), repeat=len(loads))
    best = max(successes_per_s(loads, executed(loads, list(one)), 0.9) for one in every)
    assert ours >= 0.8 * best


@settings(deadline=None)
@given(LOADS)
def test_a_floor_is_a_measured_horizon_above_the_policys_or_none(loads: list[TaskLoad]) -> None:
    for one, floor in zip(loads, choose_floors(loads, 0.9), strict=True):
        assert floor == 0 or (floor in LADDER and floor > one.horizon)


def calibration(how: dict, static_how: dict) -> HorizonCalibration:
    static = StaticHorizons({("reach-v3", "reach"): 10}, 10, static_how)
    plan = HorizonPlan((), 10)
    return HorizonCalibration("p", 50, {("reach-v3", "reach"): plan}, plan, how, static)


def test_a_calibration_tells_success_and_actions_by_every_name_of_a_task() -> None:
    found = {"ladder": [5, 10], "lead": 2, "found": {"reach-v3": {"reference_rounds": 20.0}}}
    counts = {"episodes": 128, "successes": {"reach-v3": {"5": 128, "10": 64}}}
    curves = horizon_curves(calibration(found, counts))
    assert curves["reach"] == curves["reach-v3"] == HorizonCurve((5, 10), (1.0, 0.5), 60.0)
    assert curves["reach"].success_at(7.5) == 0.75


def test_a_calibration_without_counts_is_refused() -> None:
    with pytest.raises(ConfigError, match="run 'kairos calibrate'"):
        horizon_curves(calibration({}, {}))
