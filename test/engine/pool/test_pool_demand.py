"""How many replicas a pool should have, by hand-made clocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.pool.demand import QUIET_S, ReplicaCount, ReplicaDemand, read_replica_count


def after(demand, start, seconds, computing, ready):
    """What is wanted after `seconds` in which so many compute."""
    wanted = ready
    for tenth in range(round(10 * seconds) + 1):
        wanted = demand.wanted(start + tenth / 10, computing, ready)
    return wanted


def test_replicas_that_are_all_busy_get_one_more_after_seconds_not_at_once():
    demand = ReplicaDemand(ReplicaCount(1, 4))
    assert after(demand, 0, 5, computing=2, ready=2) == 2
    assert after(demand, 5, 10, computing=2, ready=2) == 3


def test_one_goes_after_a_minute_in_which_the_others_would_have_been_enough():
    demand = ReplicaDemand(ReplicaCount(1, 4))
    after(demand, 0, 30, computing=3, ready=3)
    assert after(demand, 30, QUIET_S - 5, computing=1, ready=3) == 3
    assert after(demand, 30 + QUIET_S, 30, computing=1, ready=3) == 2


def test_a_load_that_two_just_carry_changes_nothing():
    demand = ReplicaDemand(ReplicaCount(1, 4))
    for minute in range(5):
        for second in range(60):
            wanted = after(demand, 60 * minute + second, 0.9, 1 + second % 2, ready=2)
            assert wanted == 2


def test_idle_replicas_go_down_to_the_least():
    demand = ReplicaDemand(ReplicaCount(2, 4))
    after(demand, 0, 100, computing=0, ready=3)
    assert demand.wanted(101, 0, 3) == 2
    assert demand.wanted(102, 0, 2) == 2


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 9), st.integers(0, 9)), max_size=60))
def test_never_fewer_than_the_least_nor_more_than_the_most(steps):
    demand, now = ReplicaDemand(ReplicaCount(2, 5)), 0.0
    for passed, computing, ready in steps:
        now += passed
        assert 2 <= demand.wanted(now, computing, ready) <= 5


def test_replicas_are_a_number_or_a_range():
    assert read_replica_count("3") == ReplicaCount(3, 3)
    assert read_replica_count("1..4") == ReplicaCount(1, 4)


@pytest.mark.parametrize("text", ["", "0", "4..1", "0..2", "1..", "..3", "1-4", "257", "two"])
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigError, match=r"write N or LEAST..MOST"):
        read_replica_count(text)
