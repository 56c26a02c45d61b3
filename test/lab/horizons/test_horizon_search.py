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
ERROR = 0.01


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
    found = find_plan(contact_task(0, 0, 0), SearchOptions(), 5, ERROR)
    assert found.plan == HorizonPlan((), 50)
    assert (found.reference_rounds, found.rounds_per_episode) == (16, 2)


def test_a_task_whose_tuned_horizon_is_the_longest_needs_no_test():
    found = find_plan(contact_task(0, 0, 0), SearchOptions(), 50, ERROR)
    assert found.plan == HorizonPlan((), 50)
    assert found.tests == ()


def test_only_the_phase_that_needs_care_gets_short_horizons():
    found = find_plan(contact_task(20, 40, careful=10), SearchOptions(), 10, ERROR)
    assert found.static == 10
    assert found.plan == HorizonPlan((20, 10, 10, 50), after=10)
    assert found.success == 1.0
    assert found.rounds_per_episode == 4


def test_a_task_that_begins_with_its_delicate_phase_gets_long_horizons_later():
    """A longer horizon in one of the first eight rounds fails in 6 % of the scenes."""

    def trial(plan, seeds):
        results = []
        for seed in seeds:
            bad = np.random.default_rng(seed).random(8) < 0.06
            results.append((not any(bad[r] and plan.horizon(r + 1) > 5 for r in range(8)), 12))
        return [
            (ok, sum(1 for r in range(16) if sum(map(plan.horizon, range(1, r + 1))) < LENGTH))
            for ok, _ in results
        ]

    found = find_plan(trial, SearchOptions(), 5, ERROR)
    assert found.plan == HorizonPlan((5,) * 8 + (50, 50), after=5)
    assert found.rounds_per_episode < found.reference_rounds == 16
    assert [test.holds for test in found.tests] == [True]


def test_a_task_that_needs_care_throughout_keeps_the_reference():
    found = find_plan(contact_task(0, LENGTH, careful=5), SearchOptions(), 5, ERROR)
    assert found.plan == HorizonPlan((), 5)


def test_failures_that_no_horizon_prevents_do_not_count_against_one():
    found = find_plan(contact_task(20, 40, careful=10, flaky=0.2), SearchOptions(), 10, ERROR)
    assert found.plan == HorizonPlan((20, 10, 10, 50), after=10)
    assert found.success == found.reference_success < 0.9


def long_horizons_fail(share, number):
    """A task that fails with a horizon above 5 in so many of its scenes."""

    def trial(plan, seeds):
        bad = [np.random.default_rng((number, s)).random() < share for s in seeds]
        return [(not (b and plan.longest > 5), 80 // plan.after) for b in bad]

    return trial


def test_a_horizon_that_costs_as_much_as_no_task_may_lose_is_never_accepted():
    options = SearchOptions(ladder=(5, 50), most_episodes=1000)
    trials = [long_horizons_fail(0.02, number) for number in range(40)]
    assert all(find_plan(trial, options, 5, ERROR).plan.longest == 5 for trial in trials)


def test_slack_lets_a_plan_cost_a_little():
    trial = long_horizons_fail(0.003, 1)
    without = find_plan(trial, SearchOptions(ladder=(5, 50)), 5, ERROR)
    assert without.plan.longest == 5
    assert without.tests[0].outcomes.pairs == 3000, "it went on to look for a win"
    with_slack = find_plan(trial, SearchOptions(ladder=(5, 50), slack=0.005), 5, ERROR)
    assert with_slack.plan.longest == 50
    assert with_slack.tests[0].outcomes.pairs < 1500


def test_what_is_delicate_is_tested_for_longer():
    def trial(plan, seeds):
        """Either rule fails in other scenes."""
        rng = [np.random.default_rng((s, plan.after)).random() for s in seeds]
        return [(r >= flaky[-1], 80 // plan.after) for r in rng]

    pairs, flaky = [], []
    for share in (0.0, 0.01):
        flaky.append(share)
        options = SearchOptions(ladder=(5, 50), slack=0.01, most_episodes=5000)
        (test,) = find_plan(trial, options, 5, ERROR).tests
        assert test.holds
        pairs.append(test.outcomes.pairs)
    assert pairs[1] > 1.5 * pairs[0]


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

    found = find_plan(trial, options, 10, ERROR)
    assert found.plan == HorizonPlan((), 10)
    assert {test.holds for test in found.tests} == {False}
    assert {test.outcomes.pairs for test in found.tests} == {options.block}, "given up at once"


def test_where_the_boldest_plan_fails_the_next_one_is_tested():
    options = SearchOptions(ladder=(10, 20, 50))

    def trial(plan, seeds):
        """Whole chunks fail on the test's scenes."""
        return [(plan.after < 50 or s < options.test_seed, 80 // plan.after) for s in seeds]

    found = find_plan(trial, options, 10, ERROR)
    assert found.plan.after == 20
    assert [(test.plan.after, test.holds) for test in found.tests[:2]] == [(50, False), (20, True)]
    assert {test.needed for test in found.tests[:2]} == {400.0}, "half the error, for two plans"


def test_no_episode_is_simulated_twice():
    seen = set()
    inner = contact_task(20, 40, careful=10)

    def trial(plan, seeds):
        assert not {(plan, s) for s in seeds} & seen
        seen.update((plan, s) for s in seeds)
        return inner(plan, seeds)

    assert find_plan(trial, SearchOptions(), 10, ERROR).episodes == len(seen)


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
    find_plan(trial, options, 5, ERROR)
    assert len(for_static) == 128
    assert not for_static & used


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ladder": (10, 5)}, "ascend"),
        ({"ladder": ()}, "ascend"),
        ({"ladder": (0, 5)}, "ascend"),
        ({"episodes": 0}, "episodes"),
        ({"most_episodes": 0}, "most_episodes"),
        ({"worst_loss": 0.0}, "worst_loss"),
        ({"error": 1.0}, "error"),
        ({"slack": 0.02}, "slack"),
        ({"static_seed": 2_000_100}, "seeds of their own"),
        ({"test_seed": 2_499_000}, "seeds of their own"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        SearchOptions(**options)
