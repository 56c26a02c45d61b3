"""Horizons grow where engines are short, where that costs least success, and shrink again."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan, StaticHorizons
from kairos_ros.core.horizons.load_horizon import (
    LEAST_GAIN,
    HorizonCurve,
    LoadHorizon,
    TaskLoad,
    answer_s,
    choose_floors,
    horizon_curves,
    successes_per_s,
)

EASY = HorizonCurve((5, 10, 50), (1.0, 1.0, 1.0), 100)
HARD = HorizonCurve((5, 10, 50), (1.0, 0.9, 0.4), 100)
LADDER = (5, 10, 20, 50)


def load(robots: float, curve: HorizonCurve | None, horizon: float = 5) -> TaskLoad:
    """Hundreds of robots with ten actions per second, an engine that does 1000 rounds per second,
    900 at the target, each in a time that is nothing to a robot."""
    return TaskLoad(100 * robots, horizon, 0.1, (0.001,), 1, curve)


def successes(loads: list[TaskLoad], floors: list[int]) -> float:
    horizons = np.maximum(np.array(floors, float), [one.horizon for one in loads])
    return float(successes_per_s(loads, horizons, 0.9))


def test_there_is_no_floor_while_the_engines_do_what_is_asked_for() -> None:
    # 2 rounds/s each: 800 of 900
    assert choose_floors([load(2, EASY), load(2, HARD)], 0.9) == [0, 0]


def test_horizons_grow_first_where_that_costs_no_success() -> None:
    # 1300 rounds/s are asked for; with 10 actions the easy ones take 300 of 900, with 50 only 60
    assert choose_floors([load(3, EASY), load(3.5, HARD)], 0.9) == [50, 0]


def test_they_grow_where_it_costs_success_as_far_as_more_tasks_are_worth_it() -> None:
    # 4000 rounds/s of 900. With 5: 4500 actions/s · 1.0; with 10: 9000 · 0.9; with 50: 20000
    # actions/s, all that the robots can, · 0.4 = 8000. 8100 is the most.
    assert choose_floors([load(20, HARD)], 0.9) == [10]
    assert successes([load(20, HARD)], [10]) == pytest.approx(81, rel=0.01)


def test_answers_that_take_long_are_worth_longer_horizons_without_any_load() -> None:
    # an answer takes 1 s, ten actions: a chunk of 5 is over by then, one of 50 is not
    slow = TaskLoad(0.01, 5, 0.1, (1.0,), 1, HorizonCurve((5, 10, 50), (1.0, 1.0, 1.0), 100))
    assert choose_floors([slow], 0.9) == [50]
    # 2.5 actions are executed meanwhile, 2.5 are new, and 0.75 s are held: 2.5 actions per s
    assert successes([slow], [0]) == pytest.approx(0.01 * 2.5 / 100, rel=0.05)


def test_answers_take_longer_with_more_load() -> None:
    latency_s = (0.1, 0.12, 0.14, 0.16)
    assert answer_s(latency_s, 1, 0.04, 0.0) == pytest.approx(0.1)
    # 25 rounds/s, all that it does: batches of 4, 0.16 s and half of it
    assert answer_s(latency_s, 1, 0.04, 1.0) == pytest.approx(0.24, rel=0.05)


def test_a_kind_has_no_floor_where_its_policy_allows_as_much() -> None:
    assert choose_floors([load(30, EASY, horizon=50)], 0.9) == [0]


def test_a_kind_that_was_not_calibrated_is_left_alone() -> None:
    assert choose_floors([load(30, None), load(3, EASY)], 0.9) == [0, 50]


def test_floors_fall_again_but_not_with_every_robot() -> None:
    horizon: LoadHorizon[str] = LoadHorizon()
    assert horizon.review({"a": load(4, EASY)}) == {"a": 0}
    assert horizon.review({"a": load(5, EASY)}) == {"a": 10}  # 1000 of 900
    between = {"a": load(4.3, EASY)}  # 860: below 900, above 810
    assert horizon.review(between) == {"a": 10}
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
        st.integers(1, 20), st.floats(5, 20), st.just(1 / 30),
        st.just((0.035, 0.05, 0.065, 0.08)), st.just(1), CURVES,
    ),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(deadline=None)
@given(LOADS)
def test_no_common_floor_is_better_and_neither_is_none(loads: list[TaskLoad]) -> None:
    ours = successes(loads, choose_floors(loads, 0.9))
    for floor in (0, *LADDER):
        assert ours >= successes(loads, [floor] * len(loads)) * (1 - 1.01 * LEAST_GAIN)


@settings(deadline=None, max_examples=50)
@given(LOADS)
def test_floors_of_few_kinds_are_nearly_the_best_of_all_choices(loads: list[TaskLoad]) -> None:
    ours = successes(loads, choose_floors(loads, 0.9))
    every = product((0, *LADDER), repeat=len(loads))
    assert ours >= 0.95 * max(successes(loads, list(one)) for one in every)


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
