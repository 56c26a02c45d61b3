"""The rule that compares commanded and achieved motion, for any arm and any motion."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.surprise import BLOCK, CLIP, READY, Joint, Trigger, parse_surprise

WARM = READY + BLOCK
STEPS = WARM + 60


def joints(n, *, position):
    return [Joint(f"joint_{i}", i, i, position) for i in range(n)]


def watch(n=2, *, position=True, rule="tracking"):
    return parse_surprise(rule).watch(joints(n, position=position))


def arm(seed, n=2, *, position=True, steps=STEPS, gain=0.4, lag=0.5, noise=1e-4, push=None):
    """Commands and places of an arm that follows with a lag: float64 [steps, n] and [steps + 1, n].

    push: (step, offset per step, joint), for five steps.
    """
    rng = np.random.default_rng(seed)
    t = np.arange(steps)[:, None]
    wave = np.sin(2 * np.pi * t / rng.uniform(25, 60, n) + rng.uniform(0, 6, n))
    commands = wave if position else 0.05 * wave
    places, speed = [np.zeros(n)], np.zeros(n)
    for step, command in enumerate(commands):
        wanted = gain * ((command - places[-1]) if position else command)
        speed = lag * speed + (1 - lag) * wanted + noise * rng.standard_normal(n)
        at = places[-1] + speed
        if push and push[0] <= step < push[0] + 5:
            at[push[2]] += push[1]
        places.append(at)
    return commands, np.array(places)


def scores(rule, commands, places):
    rule.begin()
    rule.step(None, places[0])
    return np.array([rule.step(c, p) for c, p in zip(commands, places[1:], strict=True)])


arms = {"seed": st.integers(0, 10**6), "n": st.integers(1, 7), "position": st.booleans()}


@given(**arms)
@settings(max_examples=30)
def test_an_arm_that_follows_is_no_surprise_and_one_that_is_pushed_is_and_which_joint_is_told(
    seed, n, position
):
    calm = scores(watch(n, position=position), *arm(seed, n, position=position))
    assert calm.max() < 6.0
    pushed = seed % n
    rule = watch(n, position=position)
    commands, places = arm(seed, n, position=position, push=(WARM + 20, 0.05, pushed))
    told = []
    rule.begin()
    rule.step(None, places[0])
    for command, place in zip(commands, places[1:], strict=True):
        told.append((rule.step(command, place), rule.joint))
    score, joint = max(told[WARM + 20 : WARM + 26])
    assert score > 6.0
    assert joint == f"joint_{pushed}"


@given(**arms, places_by=st.sampled_from([1e-3, 0.5, 57.3, 4096.0]), command_by=st.floats(0.01, 99))
@settings(max_examples=30)
def test_scores_do_not_depend_on_units(seed, n, position, places_by, command_by):
    push = (WARM + 20, 0.05, 0)
    commands, places = arm(seed, n, position=position, push=push)
    by = places_by if position else command_by  # what commands a position has the unit of places
    ours = scores(watch(n, position=position), commands, places)
    theirs = scores(watch(n, position=position), commands * by, places * places_by)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


@given(seed=st.integers(0, 10**6), at=st.integers(0, STEPS - 30), joint=st.integers(0, 2),
       value=st.sampled_from([np.nan, np.inf, -np.inf]))  # fmt: skip
@settings(max_examples=40)
def test_what_is_no_number_is_counted_and_is_no_surprise_and_nothing_is_learned_from_it(
    seed, at, joint, value
):
    commands, places = arm(seed, 3)
    clean = scores(watch(3), commands, places)
    broken = places.astype(np.float32).copy()
    broken[at + 1, joint] = value
    rule = watch(3)
    told = scores(rule, commands.astype(np.float32), broken)
    assert rule.unusable == 1
    assert np.isfinite(told).all()
    assert told[at] == 0.0
    assert told.max() < 6.0
    assert clean.max() < 6.0
    pushed = arm(seed, 3, push=(WARM + 20, 0.05, 1))
    assert scores(rule, *pushed).max() > 6.0  # it has not become blind


@given(seed=st.integers(0, 10**6), noise=st.floats(0, 1e3))
@example(seed=0, noise=5e-324)
@pytest.mark.filterwarnings("error")
@settings(max_examples=20)
def test_scores_are_within_their_range_whatever_moves(seed, noise):
    rng = np.random.default_rng(seed)
    rule = watch(3)
    told = scores(rule, rng.normal(size=(300, 3)), noise * rng.normal(size=(301, 3)))
    assert ((told >= 0) & (told <= CLIP)).all()
    assert rule.unusable == 0


def test_an_arm_that_does_not_move_and_one_that_is_not_known_yet_are_no_surprise():
    still = np.zeros((STEPS, 2))
    assert not scores(watch(), still, np.zeros((STEPS + 1, 2))).any()
    commands, places = arm(1, push=(20, 0.5, 0))
    assert not scores(watch(), commands, places)[: READY - BLOCK].any()


def test_nothing_is_compared_across_a_hold_or_a_reset():
    rule = watch()
    commands, places = arm(3)
    scores(rule, commands, places)
    far = places[:50] + 9.0
    rule.begin()
    assert rule.step(commands[0], far[0]) == 0.0
    told = [rule.step(c, p) for c, p in zip(commands, far[1:], strict=False)]
    assert max(told[:2]) == 0.0
    rule = watch()
    scores(rule, commands, places)
    assert rule.step(None, places[-1] + 9.0) == 0.0
    assert rule.unusable == 0


def test_a_twin_knows_as_much_and_learns_by_itself():
    rule = watch()
    scores(rule, *arm(5))
    first, second = rule.twin(), rule.twin()
    ours = scores(first, *arm(6, push=(40, 0.05, 1)))
    assert ours.max() > 6.0
    np.testing.assert_array_equal(ours, scores(second, *arm(6, push=(40, 0.05, 1))))


def test_a_rule_is_named_in_one_line_and_a_wrong_one_is_refused_with_what_to_do():
    rule = parse_surprise("tracking:threshold=5,settle=3,skip=wrist")
    assert (rule.threshold, rule.settle, rule.mean, rule.skip) == (5.0, 3, 3, "wrist")
    for wrong, words in {
        "psychic": "unknown surprise policy 'psychic'; known here: tracking",
        "tracking:limit=3": "its options are: threshold, settle, wait, mean, skip",
        "tracking:threshold=11": "above 0 and below 10",
        "tracking:threshold=nan": "above 0 and below 10",
        "tracking:settle=0": "settle and wait are at least 1",
    }.items():
        with pytest.raises(ConfigError, match=words):
            parse_surprise(wrong)


def test_grippers_are_not_watched_unless_it_is_said_and_an_arm_without_joints_is_refused():
    both = [Joint("elbow.pos", 0, 0, True), Joint("gripper.pos", 1, 1, True)]
    commands, places = arm(1, push=(WARM + 20, 0.05, 1))
    assert scores(parse_surprise("tracking").watch(both), commands, places).max() < 6.0
    assert scores(parse_surprise("tracking:skip=none").watch(both), commands, places).max() > 6.0
    with pytest.raises(ConfigError, match=r"guard.measured_by .*guard.workspace"):
        parse_surprise("tracking").watch(both[1:])


def test_a_surprise_is_acted_on_once_it_is_over_or_has_lasted_for_a_while_with_its_peak():
    trigger = Trigger(watch(rule="tracking:threshold=6,wait=5"))
    told = [trigger.step(score) for score in (0, 5, 7, 9, 8, 2, 0, 0)]
    assert told == [0, 0, 0, 0, 0, 9, 0, 0]
    told = [trigger.step(score) for score in (7, 7, 8, 7, 7, 7, 7, 1)]
    assert told == [0, 0, 0, 0, 8, 0, 0, 7]  # the sixth is of another one
