"""The action guard: nothing outside the limits, and never a NaN, reaches an actuator."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.guard import (
    DISPLACES,
    LASTS,
    ActionGuard,
    GuardLimits,
    Workspace,
    require_tighter,
)

RATE = 10.0
NOWHERE = np.zeros(3, np.float32)


def guarded(limits, actions, state=NOWHERE):
    """What is left of a sequence of 1-D actions, and the guard."""
    guard = ActionGuard(limits, 1, len(state), RATE)
    guard.reset(state)
    checked = (guard.check(np.array([a], np.float32), lambda: state) for a in actions)
    return [None if action is None else round(float(action[0]), 4) for action in checked], guard


def test_actions_within_the_limits_pass_unchanged_and_uncounted():
    limits = GuardLimits(minimum=[-1], maximum=[1], max_rate=[20])
    passed, guard = guarded(limits, [0.5, -0.5, 1.0])
    assert passed == [0.5, -0.5, 1.0]
    assert guard.counts.total() == 0


def test_without_limits_only_what_is_not_finite_is_refused():
    passed, guard = guarded(GuardLimits(), [1e6, np.nan, np.inf, -np.inf, -1e6])
    assert passed == [1e6, None, None, None, -1e6]
    assert +guard.counts == {"not_finite": 3}


def test_a_value_out_of_range_is_clipped_and_counted():
    passed, guard = guarded(GuardLimits(minimum=[-1], maximum=[1]), [1.5, 0.0, -3.0])
    assert passed == [1.0, 0.0, -1.0]
    assert guard.counts["range"] == 2


def test_an_overshoot_within_the_tolerance_is_clipped_but_not_counted():
    limits = GuardLimits(maximum=[1], tolerance=0.1)
    passed, guard = guarded(limits, [1.05, 1.2])
    assert passed == [1.0, 1.0]
    assert (guard.guarded, guard.counts["range"]) == (1, 1)


def test_an_action_changed_by_several_limits_counts_once():
    limits = GuardLimits(maximum=[1], max_rate=[20], workspace=Workspace([0], [1], 1, [0], [0.1]))
    _, guard = guarded(limits, [5.0])
    assert guard.guarded == 1
    assert guard.counts == {"rate": 1, "range": 1, "workspace": 1}


def test_a_jump_is_spread_over_the_periods_it_needs():
    passed, guard = guarded(GuardLimits(max_rate=[2]), [0.5, 0.5, 0.5, 0.5])
    assert passed == [0.2, 0.4, 0.5, 0.5]
    assert guard.counts["rate"] == 2


def test_a_position_starts_from_where_the_arm_is():
    limits = GuardLimits(max_rate=[1], measured_by=[2])
    passed, _ = guarded(limits, [0.0], state=np.array([0, 0, 5], np.float32))
    assert passed == [4.9]


@pytest.mark.parametrize(("kind", "after_hold"), [(DISPLACES, 0.1), (LASTS, 0.6), (0, 0.6)])
def test_holding_stops_a_displacement_and_keeps_everything_else(kind, after_hold):
    limits = GuardLimits(max_rate=[1], measured_by=[kind])
    guard = ActionGuard(limits, 1, 1, RATE)
    guard.reset(np.zeros(1, np.float32))
    for _ in range(5):
        guard.check(np.ones(1, np.float32), lambda: NOWHERE)
    guard.held()
    assert guard.check(np.ones(1, np.float32), lambda: NOWHERE) == pytest.approx(after_hold)


def box(low, high, scale=0.01):
    return GuardLimits(workspace=Workspace([0], [1], scale, [low], [high]))


def test_a_displacement_ends_at_the_wall_of_the_workspace():
    at = np.array([0, 0.495, 0], np.float32)
    passed, guard = guarded(box(-0.5, 0.5), [0.4, 1.0, -1.0], state=at)
    assert passed == [0.4, 0.5, -1.0]
    assert guard.counts["workspace"] == 1


def test_from_outside_the_workspace_the_way_back_is_free_and_the_way_out_is_closed():
    at = np.array([0, 0.6, 0], np.float32)
    passed, _ = guarded(box(-0.5, 0.5), [0.5, 0.0, -0.3], state=at)
    assert passed == [0.0, 0.0, -0.3]


def test_nothing_passes_while_the_position_in_the_workspace_is_unknown():
    at = np.array([0, np.nan, 0], np.float32)
    assert guarded(box(-0.5, 0.5), [0.1], state=at)[0] == [None]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (GuardLimits(minimum=[0, 0]), "has 2 values"),
        (GuardLimits(minimum=[1], maximum=[0]), "above maximum"),
        (GuardLimits(maximum=[np.nan]), "NaN"),
        (GuardLimits(max_rate=[0]), "above 0"),
        (GuardLimits(tolerance=-1), "tolerance"),
        (GuardLimits(measured_by=[3]), "0 to 2"),
        (GuardLimits(workspace=Workspace([0], [1, 2], 1, [0], [1])), "one length"),
        (GuardLimits(workspace=Workspace([1], [1], 1, [0], [1])), "dimensions from 0 to 0"),
        (GuardLimits(workspace=Workspace([0], [3], 1, [0], [1])), "entries from 0 to 2"),
        (GuardLimits(workspace=Workspace([0], [0], 0, [0], [1])), "scale"),
        (GuardLimits(workspace=Workspace([0], [0], 1, [1], [0])), "above high"),
    ],
)
def test_limits_that_make_no_sense_are_refused_at_start(limits, said):
    with pytest.raises(ConfigError, match=said):
        ActionGuard(limits, 1, 3, RATE)


values = st.floats(-3, 3, width=32) | st.sampled_from([np.nan, np.inf, -np.inf])


@given(
    actions=st.lists(arrays(np.float32, 2, elements=values), max_size=30),
    holds=st.sets(st.integers(0, 29)),
    start=st.floats(-0.1875, 0.1875, width=32),
)
def test_whatever_comes_the_limits_hold_within_and_across_chunks(actions, holds, start):
    limits = GuardLimits(
        minimum=[-1, -0.5],
        maximum=[1, 0.5],
        max_rate=[2, 30],
        measured_by=[0, DISPLACES],
        workspace=Workspace([1], [1], 0.1, [-0.2], [0.2]),
    )
    guard = ActionGuard(limits, 2, 2, RATE)
    arm = np.array([start, start], np.float32)
    guard.reset(arm)
    for i, action in enumerate(actions):
        if i in holds:
            guard.held()
            continue
        safe = guard.check(action, lambda arm=arm: arm)
        assert (safe is None) == (not np.isfinite(action).all())
        if safe is None:
            guard.held()
            continue
        assert np.isfinite(safe).all()
        assert (np.abs(safe) <= np.array([1, 0.5]) + 1e-6).all()
        assert abs(safe[0] - arm[0]) <= 2 / RATE + 1e-6
        arm = np.array([safe[0], arm[1] + 0.1 * safe[1]], np.float32)
        assert abs(arm[1]) <= 0.2 + 1e-6


def test_an_arm_that_new_limits_leave_outside_goes_in_at_its_largest_rate():
    guard = ActionGuard(GuardLimits(maximum=[1], max_rate=[2], measured_by=[0]), 1, 3, RATE)
    guard.reset(np.array([0.9, 0, 0], np.float32))
    guard.limit(GuardLimits(maximum=[0.5], max_rate=[2], measured_by=[0]))
    checked = [guard.check(np.array([0.9], np.float32), lambda: NOWHERE) for _ in range(4)]
    assert [round(float(action[0]), 4) for action in checked] == [0.7, 0.5, 0.5, 0.5]


def test_limits_that_do_not_fit_leave_those_before_in_force():
    guard = ActionGuard(GuardLimits(maximum=[1]), 1, 3, RATE)
    with pytest.raises(ConfigError, match="2 values"):
        guard.limit(GuardLimits(maximum=[2, 2]))
    assert guard.check(np.array([5], np.float32), lambda: NOWHERE) == 1


LIMITS = GuardLimits(minimum=[-1, -1], maximum=[1, 1], max_rate=[2, 2], tolerance=0.1)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"minimum": [-1, -0.5]},
        {"maximum": [1, 0.5]},
        {"max_rate": [0.1, 2]},
        {"minimum": [-0.5, -0.5], "maximum": [0.5, 0.5]},
    ],
)
def test_tighter_limits_may_come_during_a_task(change):
    require_tighter(LIMITS, replace(LIMITS, **change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"minimum": [-1, -1.1]}, "guard minimum would go from"),
        ({"maximum": [1.1, 0.5]}, "guard maximum would go from"),
        ({"max_rate": [3, 1]}, "guard max_rate would go from"),
        ({"max_rate": []}, "guard max_rate would go from"),
        ({"tolerance": 0.2}, "guard tolerance can be changed between tasks only"),
        ({"measured_by": [0, 1]}, "guard measured_by can be changed between tasks only"),
    ],
)
def test_looser_or_other_limits_may_not(change, said):
    with pytest.raises(ConfigError, match=said):
        require_tighter(LIMITS, replace(LIMITS, **change))


@given(
    arrays(np.float64, (3, 2), elements=st.floats(-2, 2)),
    arrays(np.float64, (3, 2), elements=st.floats(-2, 2)),
)
def test_whatever_is_called_tighter_allows_no_action_that_was_not_allowed(before, after):
    def limits(rows):
        low, high = np.minimum(rows[0], rows[1]), np.maximum(rows[0], rows[1])
        return GuardLimits([*low], [*high], [*(np.abs(rows[2]) + 0.1)])

    try:
        require_tighter(limits(before), limits(after))
    except ConfigError:
        return
    for value in (-3.0, 0.0, 3.0):
        guard = ActionGuard(limits(after), 2, 2, RATE)
        wanted = np.full(2, value, np.float32)
        for _ in range(300):  # until it has arrived
            now = guard.check(wanted, lambda: np.zeros(2))
        assert (now <= np.float32(limits(before).maximum) + 1e-5).all()
        assert (now >= np.float32(limits(before).minimum) - 1e-5).all()
