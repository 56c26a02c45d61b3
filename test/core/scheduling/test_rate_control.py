"""Rate control: fair, within the target, and silent while there is room."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.scheduling.rate_control import (
    LONGEST_PERIOD_S,
    RELEASE,
    TARGET_UTILISATION,
    Demand,
    RateControl,
    fair_level,
)

RATES = st.lists(st.floats(0.2, 20), min_size=1, max_size=30)
CAPACITIES = st.floats(10, 200)


def rates_of(demands: dict[str, Demand], periods: dict[str, float]) -> dict[str, float]:
    """What the robots then ask for."""
    return {
        name: min(one.rate_hz, 1 / periods[name]) if periods[name] else one.rate_hz
        for name, one in demands.items()
    }


def asking(rates: list[float], capacity: float) -> dict[str, Demand]:
    return {f"arm_{i}": Demand(rate, 1 / capacity) for i, rate in enumerate(rates)}


def test_who_asks_for_less_than_its_share_is_not_limited_and_the_others_share_the_rest() -> None:
    # 10 rounds/s, target 9: 1 is free, the other two get (9 - 1) / 2 = 4 each
    periods = RateControl().review(asking([1, 6, 8], 10))
    assert periods == pytest.approx({"arm_0": 0, "arm_1": 0.25, "arm_2": 0.25})


def test_weights_divide_the_rest() -> None:
    # target 9, both ask for more: 3 and 6
    demands = {"a": Demand(9, 0.1), "b": Demand(9, 0.1, weight=2)}
    assert RateControl().review(demands) == pytest.approx({"a": 1 / 3, "b": 1 / 6})


def test_costly_rounds_count_for_more() -> None:
    # L · (0.1 + 0.3) = 0.9, so L = 2.25 for both
    demands = {"a": Demand(5, 0.1), "b": Demand(5, 0.3)}
    assert RateControl().review(demands) == pytest.approx({"a": 1 / 2.25, "b": 1 / 2.25})


def test_control_ends_only_when_the_load_is_well_below_the_target() -> None:
    control = RateControl()
    control.review(asking([5, 5], 10))
    assert control.active
    between = control.review(asking([4, 4.5], 10))  # 8.5: below 9, above 8.1
    assert control.active
    assert between == pytest.approx({"arm_0": 0, "arm_1": 1 / 4.5})
    assert control.review(asking([4, 4], 10)) == {"arm_0": 0, "arm_1": 0}
    assert control.review(asking([4, 4.5], 10)) == {"arm_0": 0, "arm_1": 0}, "not begun again"


def test_without_robots_there_is_nothing_to_control() -> None:
    control = RateControl()
    control.review(asking([50], 10))
    assert control.review({}) == {}
    assert not control.active


def test_nobody_waits_longer_than_the_longest_period() -> None:
    assert set(RateControl().review(asking([1, 1], 0.01)).values()) == {LONGEST_PERIOD_S}


@given(RATES, CAPACITIES)
def test_the_rates_add_up_to_at_most_the_target(rates: list[float], capacity: float) -> None:
    demands = asking(rates, capacity)
    total = sum(rates_of(demands, RateControl().review(demands)).values())
    assert total <= TARGET_UTILISATION * capacity * (1 + 1e-9)


@given(RATES, CAPACITIES)
def test_nobody_is_limited_while_there_is_room(rates: list[float], capacity: float) -> None:
    periods = RateControl().review(asking(rates, capacity))
    if any(periods.values()):
        assert sum(rates) > TARGET_UTILISATION * capacity
    total = sum(rates_of(asking(rates, capacity), periods).values())
    assert total == pytest.approx(min(sum(rates), TARGET_UTILISATION * capacity))


@given(RATES, CAPACITIES)
def test_nobody_has_more_than_one_who_is_limited(rates: list[float], capacity: float) -> None:
    demands = asking(rates, capacity)
    periods = RateControl().review(demands)
    told = rates_of(demands, periods)
    limited = [told[name] for name, period in periods.items() if period]
    for rate in limited:
        assert max(told.values()) <= rate * (1 + 1e-9)


@given(RATES, CAPACITIES, st.floats(1, 3))
def test_more_capacity_slows_nobody_down(rates: list[float], capacity: float, more: float) -> None:
    before, after = (asking(rates, c) for c in (capacity, capacity * more))
    slow = rates_of(before, RateControl().review(before))
    fast = rates_of(after, RateControl().review(after))
    assert all(fast[name] >= slow[name] * (1 - 1e-9) for name in slow)


@given(st.lists(RATES, min_size=2, max_size=10), CAPACITIES)
def test_the_target_holds_whatever_was_asked_for_before(
    history: list[list[float]], capacity: float
) -> None:
    control = RateControl()
    for rates in history:
        demands = asking(rates, capacity)
        told = rates_of(demands, control.review(demands))
        assert sum(told.values()) <= TARGET_UTILISATION * capacity * (1 + 1e-9)
        if sum(rates) < RELEASE * TARGET_UTILISATION * capacity * (1 - 1e-9):
            assert not control.active


def test_the_level_is_infinite_where_all_fits() -> None:
    one = np.ones(3)
    assert math.isinf(fair_level(one, one, one, 3.0))
