"""Which answers a step decodes, and how long steps take (Wang et al., Algorithm 3)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.language.decoding import (
    LENGTH_STEP,
    Decoding,
    StepTimes,
    decode_all,
    decode_by_slack,
)


def decoding(key, length, *, said=1, most=10, first_s=0.0, until_s=10.0):
    return Decoding(key, length, said, most, first_s, until_s)


def learned(took_s, *, answers=8, lengths=(0, 1000)):
    """Steps whose times `took_s(answers, length)` are."""
    times = StepTimes()
    for n in range(1, answers + 1):
        for length in lengths:
            times.saw(n, length, took_s(n, length))
    return times


def test_the_slack_is_what_is_left_until_the_next_token_is_due():
    one = decoding("a", 100, said=3, most=10, first_s=2.0, until_s=12.0)
    assert one.slack_s(now_s=4.0, step_s=0.5) == pytest.approx(1.0 * (3 + 1) - (4.0 - 2.0) - 0.5)


def test_short_answers_go_first_while_the_long_one_can_wait():
    times = learned(lambda n, length: 0.010 * n + 0.001 * length)
    answers = [decoding("long", 1000), decoding("short", 10), decoding("shorter", 5)]
    assert decode_by_slack(answers, times, now_s=0.1) == ["shorter", "short"]
    assert decode_all(answers, times, 0.1) == ["long", "short", "shorter"]


def test_all_are_decoded_where_an_answer_is_behind():
    times = learned(lambda n, length: 0.010 * n + 0.001 * length)
    answers = [decoding("long", 1000), decoding("short", 10)]
    assert decode_by_slack(answers, times, now_s=9.0) == ["long", "short"]


def test_a_step_that_brings_fewer_tokens_per_second_is_not_taken():
    times = learned(lambda n, _: 0.1 if n <= 2 else 0.4)
    answers = [decoding(key, 100) for key in "abc"]
    assert decode_by_slack(answers, times, now_s=0.0) == ["a", "b"]


def test_of_equal_answers_all_are_decoded_where_a_larger_batch_pays():
    times = learned(lambda n, _: 0.1 + 0.01 * n)
    answers = [decoding(key, 100) for key in "abcdef"]
    assert decode_by_slack(answers, times, now_s=0.0) == list("abcdef")


def test_before_anything_is_learned_all_are_decoded():
    answers = [decoding(key, 100) for key in "abc"]
    assert decode_by_slack(answers, StepTimes(), now_s=0.0) == list("abc")


def test_a_slow_step_is_forgotten_when_larger_ones_are_faster():
    times = StepTimes()
    times.saw(1, 0, 30.0)  # the machine was busy
    assert times.expected_s(4, 500) == 30.0
    times.saw(4, 500, 0.2)
    assert times.expected_s(1, 0) == pytest.approx(0.2)
    assert times.expected_s(9, 900) == pytest.approx(0.2)


answer = st.builds(
    lambda length, said, left, first_s, takes_s: Decoding(
        object(), length, said, said + left, first_s, first_s + takes_s
    ),
    st.integers(1, 2000),
    st.integers(1, 60),
    st.integers(1, 60),
    st.floats(0.0, 20.0),
    st.floats(0.01, 60.0),
)
steps = st.lists(st.tuples(st.integers(1, 16), st.integers(1, 2000), st.floats(1e-4, 2.0)))


@given(st.lists(answer, min_size=1, max_size=12), steps, st.floats(0.0, 80.0))
def test_what_is_packed_is_over_before_the_most_urgent_has_to_go_on(answers, seen, now_s):
    times = StepTimes()
    for one in seen:
        times.saw(*one)
    chosen = decode_by_slack(answers, times, now_s)
    assert chosen, "a turn always goes on"
    assert set(chosen) <= {one.key for one in answers}
    if len(chosen) == len(answers):
        return
    packed = [one for one in answers if one.key in chosen]
    delayed = [one for one in answers if one.key not in chosen]
    assert max(one.length for one in packed) <= min(one.length for one in delayed)
    step_s = times.expected_s(len(packed), max(one.length for one in packed))
    for one in answers:
        assert one.slack_s(now_s, times.expected_s(1, one.length)) >= step_s


@given(steps)
def test_a_larger_step_never_seems_faster(seen):
    times = StepTimes()
    for one in seen:
        times.saw(*one)
    for n in range(1, 17):
        row = [times.expected_s(n, at) for at in range(0, 2001, LENGTH_STEP)]
        assert all(a <= b for a, b in pairwise(row))
        assert all(times.expected_s(n, at) <= times.expected_s(n + 1, at) for at in (0, 700, 2000))


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=8),
    st.lists(st.integers(1, 2000), min_size=8, max_size=8),
    st.floats(0.001, 0.5),
)
def test_every_answer_ends(tokens, lengths, each_s):
    """However long the others are: none is passed over for ever."""
    times, now_s, ends = StepTimes(), 0.0, 0
    said = dict.fromkeys(range(len(tokens)), 1)
    for _ in range(4000):
        answers = [
            Decoding(key, lengths[key] + n, n, tokens[key], 0.0, 20.0) for key, n in said.items()
        ]
        if not answers:
            break
        chosen = decode_by_slack(answers, times, now_s)
        longest = max(one.length for one in answers if one.key in chosen)
        took_s = each_s * (1 + 0.1 * len(chosen) + longest / 500)
        times.saw(len(chosen), longest, took_s)
        now_s += took_s
        for key in chosen:
            said[key] += 1
            if said[key] == tokens[key]:
                del said[key]
                ends += 1
    assert ends == len(tokens)
