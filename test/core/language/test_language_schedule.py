"""Which questions are answered, and who is put off where the cache is full."""

from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.language.schedule import MOST_WAITING, Frame, LanguageSchedule


def schedule(slots, *asked):
    """`asked`: robots, one question each, numbered from 0."""
    made = LanguageSchedule(slots)
    for number, robot in enumerate(asked):
        assert made.ask(number, robot, until_s=10.0)
    return made


def test_a_question_starts_on_the_next_frame_of_its_own_robot():
    made = schedule(4, "a", "b")
    assert made.frame(["c"]) == Frame()
    assert made.frame(["b", "c"]) == Frame(started=(1,))
    assert made.frame(["b"]) == Frame(), "it is being answered already"
    assert (made.waiting, made.answering) == (1, 1)


def test_of_a_full_cache_the_oldest_questions_have_the_slots_and_the_youngest_is_put_off():
    made = schedule(2, "a", "b", "c")
    assert made.frame(["a", "b", "c"]) == Frame(started=(0, 1))
    assert (made.put_off, made.restarts) == (1, 0)
    made.end(0)
    assert made.frame(["c"]) == Frame(started=(2,))


def test_an_older_question_takes_the_slot_of_the_youngest_which_starts_anew():
    made = schedule(2, "late", "b", "c")
    assert made.frame(["b", "c"]) == Frame(started=(1, 2))
    assert made.frame(["late"]) == Frame(started=(0,), restarted=(2,))
    assert (made.put_off, made.restarts) == (0, 1)
    assert made.frame(["c"]) == Frame(), "both others are older"
    assert made.put_off == 1
    made.end(1)
    assert made.frame(["c"]) == Frame(started=(2,))


def test_a_younger_question_never_takes_a_slot():
    made = schedule(1, "a", "b")
    made.frame(["a"])
    assert made.frame(["b"]) == Frame()
    assert (made.put_off, made.restarts) == (1, 0)


def test_questions_whose_time_is_over_are_named_until_they_end():
    made = LanguageSchedule(1)
    made.ask("x", "a", until_s=2.0)
    made.ask("y", "a", until_s=1.0)
    assert made.expired(0.9) == ()
    assert made.expired(1.0) == ("y",)
    assert made.expired(2.0) == ("x", "y")
    made.end("x")
    assert made.expired(2.0) == ("y",)


def test_more_than_the_most_do_not_wait():
    made = schedule(1, *["a"] * MOST_WAITING)
    assert not made.ask("one more", "a", until_s=10.0)
    assert not made.known("one more")
    made.frame(["a"])
    assert made.ask("one more", "a", until_s=10.0)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("abcd")),
        st.tuples(st.just("frame"), st.sets(st.sampled_from("abcd"), min_size=1)),
        st.tuples(st.just("end"), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(st.integers(1, 4), EVENTS)
def test_slots_are_never_more_than_there_are_and_an_older_question_never_loses_one(slots, events):
    made, held, number = LanguageSchedule(slots), set(), 0
    for kind, what in events:
        if kind == "ask":
            made.ask(number, what, until_s=1.0)
            number += 1
        elif kind == "end":
            made.end(what)
            held.discard(what)
        else:
            before = set(held)
            turn = made.frame(what)
            assert set(turn.restarted) <= before
            assert not set(turn.started) & before
            held = before - set(turn.restarted) | set(turn.started)
            if turn.restarted:
                assert max(turn.started) < min(turn.restarted), "only for an older one"
                assert max(held) < min(turn.restarted)
        assert made.answering == len(held) <= slots
        assert all(made.has_slot(key) for key in held)


@given(st.integers(1, 3), st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_every_question_has_its_turn(slots, robots):
    """While frames come and whoever has a slot is answered, the oldest of them each time."""
    made = schedule(slots, *robots)
    for _ in robots:
        made.frame("abc")
        made.end(min(key for key in range(len(robots)) if made.known(key)))
    assert made.waiting == made.answering == 0
