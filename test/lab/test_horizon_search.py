"""The search for horizon plans: what costs no success, found on a task whose answer is known."""

import numpy as np
import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonPlan
from kairos_ros.lab.horizons.search import (
    SearchOptions,
    find_plan,
    longest_best,
    static_successes,
)

LENGTH = 80
"""Actions that the task takes."""


def contact_task(first: int, last: int, careful: int, flaky: float = 0.0):
    """A task that fails in a round that is longer than `careful` and touches [first, last).

    `flaky`: share of scenes that fail whatever the horizons.
    """

    def trial(plan, seeds):
        results = []
        for seed in seeds:
            done, round_ = 0, 0
            ok = np.random.default_rng(seed).random() >= flaky
            while done < LENGTH:
                h = plan.horizon(round_ + 1)
                ok &= h <= careful or done >= last or done + h <= first
                done, round_ = done + h, round_ + 1
            results.append((bool(ok), round_))
        return results

    return trial


def test_a_task_that_bears_it_runs_whole_chunks():
    found = find_plan(contact_task(0, 0, 0), SearchOptions())
    assert found.plan == HorizonPlan((), 50)
    assert (found.reference_rounds, found.rounds_per_episode) == (16, 2)


def test_only_the_phase_that_needs_care_gets_short_horizons():
    found = find_plan(contact_task(20, 40, careful=10), SearchOptions())
    assert found.static == 10
    assert found.plan == HorizonPlan((20, 10, 10, 50), after=10)
    assert found.success == 1.0
    assert found.rounds_per_episode == 4


def test_a_task_that_needs_care_throughout_keeps_the_reference():
    found = find_plan(contact_task(0, LENGTH, careful=5), SearchOptions())
    assert found.plan == HorizonPlan((), 5)


def test_failures_that_no_horizon_prevents_do_not_count_against_one():
    found = find_plan(contact_task(20, 40, careful=10, flaky=0.2), SearchOptions())
    assert found.plan == HorizonPlan((20, 10, 10, 50), after=10)
    assert found.success == found.reference_success < 0.9


def test_a_horizon_that_costs_five_percent_is_hardly_ever_accepted():
    """5 % of 128 scenes are 6.4 net losses, 2 are allowed."""

    def task(number):
        def trial(plan, seeds):
            bad = [np.random.default_rng((number, s)).random() < 0.05 for s in seeds]
            return [(not (b and plan.longest > 5), 80 // plan.after) for b in bad]

        return trial

    options = SearchOptions(ladder=(5, 50))
    assert sum(find_plan(task(number), options).plan.longest > 5 for number in range(20)) <= 4


def test_luck_on_the_searched_scenes_has_to_repeat_on_fresh_ones():
    options = SearchOptions(ladder=(10, 50))

    def trial(plan, seeds):
        """A long second round is harmless on the first 128 scenes only."""
        lucky = [s < options.first_seed + options.episodes for s in seeds]
        long_later = 50 in plan.rounds[1:]
        ok = [
            plan.after == 10 and plan.rounds[:1] != (50,) and (not long_later or x) for x in lucky
        ]
        return [(x, 2 if long_later else 8) for x in ok]

    found = find_plan(trial, options)
    assert found.plan == HorizonPlan((), 10)


def test_no_episode_is_simulated_twice():
    seen = set()
    inner = contact_task(20, 40, careful=10)

    def trial(plan, seeds):
        assert not {(plan, s) for s in seeds} & seen
        seen.update((plan, s) for s in seeds)
        return inner(plan, seeds)

    assert find_plan(trial, SearchOptions()).episodes == len(seen)


def test_the_tuned_static_horizon_is_the_largest_at_the_highest_accuracy():
    assert longest_best({5: 128, 10: 128, 20: 127, 50: 90}) == 10
    assert longest_best({5: 126, 10: 125, 20: 128, 50: 128}) == 50


def test_static_horizons_are_tuned_on_seeds_that_chose_no_plan():
    used: set[int] = set()

    def trial(plan, seeds):
        used.update(seeds)
        return contact_task(20, 40, careful=10)(plan, seeds)

    options = SearchOptions(ladder=(5, 10, 20, 50))
    assert static_successes(trial, options) == {5: 128, 10: 128, 20: 0, 50: 0}
    for_static = set(used)
    used.clear()
    find_plan(trial, options)
    assert len(for_static) == 128
    assert not for_static & used


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ladder": (10, 5)}, "ascend"),
        ({"ladder": ()}, "ascend"),
        ({"ladder": (0, 5)}, "ascend"),
        ({"episodes": 0}, "episodes"),
        ({"allowance": -1}, "allowance"),
        ({"static_seed": 2_000_100}, "not apart"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        SearchOptions(**options)
